"""Verb: trains a smaller embedder after a larger one and leaves a preset.

    python -m training.distill --config compact --teacher runs/minilm \
        --data texts.txt --workdir runs/compact
"""

import sys

from training.engine import cli
from training.engine.configs import DistillConfig
from training.named_runs import DISTILL_CONFIGS


def distill(config: DistillConfig) -> dict[str, float]:
    """Trains, or continues, a run; see `training.engine.run.run_task`."""
    cli.import_tensorflow()
    from training.distillation.task import DistillationTask
    from training.engine.run import run_task

    return run_task(config, DistillationTask)


def parse(args: list[str] | None = None) -> DistillConfig:
    """Reads a run from the command line."""
    return cli.parse(
        DISTILL_CONFIGS,
        "training.distill",
        "Trains a smaller embedder to give what a larger one gives, and "
        "leaves WORKDIR/preset. The teacher's embeddings are computed once. "
        "The same command continues a run that was interrupted.",
        args,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(distill, parse(args), "training.distill")


if __name__ == "__main__":
    sys.exit(main())
