"""Verb: pre-trains an encoder on text and leaves a preset.

    python -m training.pretrain --config small \
        --data runs/novels/data --workdir runs/novels/train
"""

import dataclasses
import hashlib
import sys

from training import cli
from training.configs import PRETRAIN_CONFIGS, PretrainConfig


def pretrain(config: PretrainConfig) -> dict[str, float]:
    """Trains, or continues, the run in `config.run.workdir`.

    Returns:
        The last figures on held-out text; none where the run was finished
        before.

    Raises:
        ValueError: A value of the configuration or a file of the data is
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
    from training.tasks.masked_lm import MaskedLMTask

    run, training = config.run, config.training
    strategy = get_strategy(run.strategy)
    records = RunRecords(run.workdir, training.steps, is_chief(strategy))
    task = MaskedLMTask(config)
    masked_lm = dataclasses.asdict(config.masked_lm)
    init = masked_lm.pop("init")
    records.claim(
        {
            "model": dataclasses.asdict(config.model),
            "training": dataclasses.asdict(training),
            "masked_lm": masked_lm,
            "init_sha256": None if init is None else _weights_sha256(init),
            "data_sha256": task.data_sha256,
        }
    )
    preset = run.workdir / "preset"
    if preset.exists():
        records.say(f"finished before: {preset}")
        return {}
    smallest = _smallest_head(config.model)
    if smallest < config.masked_lm.sequence_length:
        records.say(
            f"warning: heads of size {smallest} cannot represent every "
            f"attention pattern over {config.masked_lm.sequence_length} "
            "tokens, a bottleneck (Bhojanapalli et al. 2020, Theorem 1)"
        )
    figures = train_and_evaluate(task, strategy, training, run, records)
    records.say(f"wrote {preset}")
    return figures


def _smallest_head(model):
    return model.head_size or model.max_sequence_length


def _weights_sha256(preset):
    digest = hashlib.sha256()
    for path in sorted(preset.glob("*.weights.h5")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def parse(args: list[str] | None = None) -> PretrainConfig:
    """Reads a run from the command line."""
    return cli.parse(
        PretrainConfig,
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
