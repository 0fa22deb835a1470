"""Verb: trains an encoder for retrieval and leaves a preset.

    python -m training.finetune --config demo_retrieval \
        --data runs/demo/data --workdir runs/demo/train
"""

import dataclasses
import hashlib
import sys

from training import cli
from training.configs import FINETUNE_CONFIGS, FinetuneConfig


def finetune(config: FinetuneConfig) -> dict[str, float]:
    """Trains, or continues, the run in `config.run.workdir`.

    Returns:
        The last validation figures; none where the run was finished before.

    Raises:
        ValueError: A value of the configuration or a line of the data is
            wrong, or the work directory is that of another run.
        OSError: The data folder cannot be read, or the work directory cannot
            be written.
        Interrupted, WorkerLost, RunFailed, FloatingPointError: See
            `training.loop.train_and_evaluate`.
    """
    # TensorFlow takes seconds to import, which `--help` need not wait for.
    from training.loop import train_and_evaluate
    from training.records import RunRecords
    from training.strategy import get_strategy, is_chief
    from training.tasks.retrieval import RetrievalTask

    run, training = config.run, config.training
    strategy = get_strategy(run.strategy)
    records = RunRecords(run.workdir, training.steps, is_chief(strategy))
    task = RetrievalTask(config)
    records.claim(
        {
            "model": dataclasses.asdict(config.model),
            "training": dataclasses.asdict(training),
            "retrieval": dataclasses.asdict(config.retrieval),
            "data_sha256": {
                name: hashlib.sha256((run.data / name).read_bytes()).hexdigest()
                for name in ("train.jsonl", "vocabulary.txt")
            },
        }
    )
    preset = run.workdir / "preset"
    if preset.exists():
        records.say(f"finished before: {preset}")
        return {}
    figures = train_and_evaluate(task, strategy, training, run, records)
    records.say(f"wrote {preset}")
    return figures


def parse(args: list[str] | None = None) -> FinetuneConfig:
    """Reads a run from the command line."""
    return cli.parse(
        FinetuneConfig,
        FINETUNE_CONFIGS,
        "training.finetune",
        "Trains an encoder for retrieval and leaves WORKDIR/preset. The same "
        "command continues a run that was interrupted.",
        args,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(finetune, parse(args), "training.finetune")


if __name__ == "__main__":
    sys.exit(main())
