"""Verb: trains an encoder for retrieval and leaves a preset.

    python -m training.finetune --config demo_retrieval \
        --data runs/demo/data --workdir runs/demo/train
"""

import sys

from training import cli
from training.configs import FINETUNE_CONFIGS, FinetuneConfig


def finetune(config: FinetuneConfig) -> dict[str, float]:
    """Trains, or continues, a run; see `training.run.run_task`."""
    # TensorFlow takes seconds to import, which `--help` need not wait for.
    from training.run import run_task
    from training.tasks.retrieval import RetrievalTask

    return run_task(config, RetrievalTask)


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
