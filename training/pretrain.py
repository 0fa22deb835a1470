"""Verb: pre-trains an encoder on text and leaves a preset.

    python -m training.pretrain --config small \
        --data runs/novels/data --workdir runs/novels/train
"""

import sys

from training.engine import cli
from training.engine.configs import PretrainConfig
from training.named_runs import PRETRAIN_CONFIGS


def pretrain(config: PretrainConfig) -> dict[str, float]:
    """Trains, or continues, a run; see `training.engine.run.run_task`."""
    cli.import_tensorflow()
    from training.engine.run import run_task
    from training.masked_lm.task import MaskedLMTask

    return run_task(config, MaskedLMTask)


def parse(args: list[str] | None = None) -> PretrainConfig:
    """Reads a run from the command line."""
    return cli.parse(
        PRETRAIN_CONFIGS,
        "training.pretrain",
        "Pre-trains an encoder on masked tokens and next sentences and leaves "
        "WORKDIR/preset. The same command continues a run that was "
        "interrupted.",
        args,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(pretrain, parse(args), "training.pretrain")


if __name__ == "__main__":
    sys.exit(main())
