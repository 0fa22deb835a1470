"""What does a report on attention cost a run that trains?

    python -m benchmarks.attention_reports

An update of `training.pretrain` and a report of `--attention_interval`, written
to TensorBoard, take turns in one process, for the shape and the batch of
`benchmarks.pretraining` without padding. Prints the median of the milliseconds
and of the ratios, round by round: how many updates a report costs.
"""

import dataclasses
import pathlib
import tempfile

import numpy as np

from benchmarks import common, pretraining
from keras_fixedhead.diagnostics import AttentionSummaries


@dataclasses.dataclass(frozen=True)
class Config(pretraining.Config):
    """A shape, and the sequences of a report."""

    sequences: tuple[int, ...] = (4, 16)
    """How many a report looks at."""
    repeats: int = 10


def main():
    config = common.parse(Config, "attention_reports", __doc__)
    common.print_environment("TensorFlow", "Keras")
    print(config)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        task, batch = pretraining.make_task(config, folder, padded=False)
        update = pretraining.ours(task, batch)
        model, inputs = task.attention_inputs(batch)
        common.print_header(
            "sequences", "update, ms", "report, ms", "report / update"
        )
        for sequences in config.sequences:
            summaries = AttentionSummaries(
                folder / "summaries",
                model,
                {name: x[:sequences] for name, x in inputs.items()},
            )
            calls = {"update": update, "report": lambda s=summaries: s.write(0)}
            updates, reports = common.milliseconds(
                calls, config.repeats
            ).values()
            summaries.close()
            common.print_row(
                sequences,
                f"{np.median(updates):.0f}",
                f"{np.median(reports):.0f}",
                f"{np.median(reports / updates):.1f}",
            )


if __name__ == "__main__":
    main()
