"""Verb: trains an encoder for retrieval and leaves a preset.

    python -m training.finetune --config demo_retrieval \
        --data runs/demo/data --workdir runs/demo/train
"""

import argparse
import dataclasses
import hashlib
import os
import sys

import tyro

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
        training.loop.Interrupted, FloatingPointError: See
            `training.loop.train_and_evaluate`.
    """
    # TensorFlow takes seconds to import, which `--help` need not wait for.
    from training.loop import train_and_evaluate
    from training.records import RunRecords
    from training.strategy import get_strategy, is_chief
    from training.tasks.retrieval import RetrievalTask

    run, training = config.run, config.training
    strategy = get_strategy(run.strategy)
    records = RunRecords(
        run.workdir,
        training.steps,
        training.global_batch_size,
        is_chief(strategy),
    )
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
    """Reads a run from the command line: a named one, and what differs."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--config", default="demo_retrieval")
    name = named.parse_known_args(args)[0].config
    if name not in FINETUNE_CONFIGS:
        sys.exit(
            f"training.finetune: --config must be one of "
            f"{', '.join(FINETUNE_CONFIGS)}. Received: {name}"
        )
    listed = "\n".join(
        f"  {name}: {function.__doc__}"
        for name, function in FINETUNE_CONFIGS.items()
    )
    return tyro.cli(
        FinetuneConfig,
        args=args,
        prog="python -m training.finetune",
        description=(
            "Trains an encoder for retrieval and leaves WORKDIR/preset. The "
            "same command continues a run that was interrupted.\n\n"
            f"Named configurations:\n{listed}"
        ),
        default=FINETUNE_CONFIGS[name](),
        config=(tyro.conf.OmitArgPrefixes,),
        use_underscores=True,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = parse(args)
    # What TensorFlow logs below an error would bury the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from training.loop import Interrupted

    try:
        finetune(config)
    except Interrupted as interrupted:
        print(f"training.finetune: {interrupted}", file=sys.stderr)
        return 128 + interrupted.signum
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"training.finetune: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
