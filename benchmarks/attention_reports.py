"""What does a report on attention cost a run that trains?

    python -m benchmarks.attention_reports

An update of `training.pretrain` and a report of `--attention_interval`, written
to TensorBoard, in turn in one process, for the shape and the batch of
`benchmarks.pretraining` without padding. Prints the median of the milliseconds
and of the ratios, round by round: so many updates does a report cost.
"""

import dataclasses
import pathlib
import platform
import statistics
import tempfile
import time

import keras
import tensorflow as tf
import tyro
from rich.progress import track

from benchmarks import pretraining
from keras_fixedhead.diagnostics import AttentionSummaries


@dataclasses.dataclass(frozen=True)
class Config(pretraining.Config):
    """A shape, and the sequences of a report."""

    sequences: tuple[int, ...] = (4, 16)
    """How many a report looks at."""
    repeats: int = 10


def main():
    config = tyro.cli(
        Config,
        prog="python -m benchmarks.attention_reports",
        description=__doc__,
        use_underscores=True,
    )
    print(
        f"{platform.machine()}, TensorFlow {tf.__version__}, Keras "
        f"{keras.__version__}, {config}"
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        task = pretraining.make_task(config, folder, padded=False)
        context = tf.distribute.InputContext(1, 0, 1)
        batch = next(iter(task.training_dataset(context, 0)))
        update = pretraining.ours(task, batch)
        model, inputs = task.attention_inputs(batch)
        print("| sequences | update, ms | report, ms | report / update |")
        print("|---|---|---|---|")
        for sequences in config.sequences:
            summaries = AttentionSummaries(
                folder / "summaries",
                model,
                {name: x[:sequences] for name, x in inputs.items()},
            )
            measured = measure(
                {"update": update, "report": lambda s=summaries: s.write(0)},
                config.repeats,
            )
            summaries.close()
            ratios = [b / a for a, b in zip(*measured.values())]
            print(
                f"| {sequences} | "
                + "".join(
                    f"{statistics.median(times):.0f} | "
                    for times in measured.values()
                )
                + f"{statistics.median(ratios):.1f} |",
                flush=True,
            )


def measure(calls, repeats):
    """Milliseconds of each call, made in turn."""
    times = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in track(range(repeats), "Measuring", transient=True):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


if __name__ == "__main__":
    main()
