r"""Predicts answers or labels for a file with a fine-tuned preset.

    python -m training.predict --task squad --model runs/squad/preset \
        --input dev-v1.1.json --output predictions.json

Prints the task's metrics for the examples that have answers or labels in the
file. Each task has its own flags: --task NAME --help lists them.
"""

import argparse
import importlib
import sys

import tyro

from training.engine import cli
from training.engine.configs import PredictConfig
from training.tasks import TASKS

_KINDS: dict[str, type[PredictConfig]] = {
    name: configs.Prediction
    for name, configs in TASKS.items()
    if hasattr(configs, "Prediction")
}


def parse(args: list[str] | None = None) -> PredictConfig:
    """Returns the flags of the task that `--task` names."""
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chosen.add_argument("--task")
    name = chosen.parse_known_args(args)[0].task
    if name is not None and name not in _KINDS:
        cli.say_error(
            "training.predict",
            f"--task must be one of {', '.join(_KINDS)}. Received: {name}",
        )
        sys.exit(cli.USAGE)
    tasks = "\n".join(
        f"  {name}: {kind.__doc__}" for name, kind in _KINDS.items()
    )
    return tyro.cli(
        _KINDS.get(name or "", PredictConfig),
        args=args,
        prog="python -m training.predict",
        description=f"{cli.description(__doc__)}\n\nTasks:\n{tasks}",
        use_underscores=True,
    )


def predict(config: PredictConfig) -> None:
    """Predicts, writes and prints; see `predict` of the task's `task.py`."""
    cli.import_tensorflow()
    folder = TASKS[config.task].__package__
    task = importlib.import_module(f"{folder}.task")
    for name, value in task.predict(config).items():
        print(f"{name} {value:.4f}")
    print(f"wrote {config.output}")


def main(args: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.run(predict, parse(args), "training.predict")


if __name__ == "__main__":
    sys.exit(main())
