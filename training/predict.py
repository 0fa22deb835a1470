r"""Predicts answers or labels for a file with a fine-tuned preset.

    python -m training.predict --task squad --model runs/squad/preset \
        --input dev-v1.1.json --output predictions.json

Prints the task's metrics for the examples that have answers or labels in the
file. Each task has its own flags: --task NAME --help lists them.
"""

import importlib
import sys

from training.engine import cli
from training.engine.configs import PredictConfig
from training.tasks import TASKS

_PROG = "training.predict"
_KINDS: dict[str, type[PredictConfig]] = {
    name: configs.Prediction
    for name, configs in TASKS.items()
    if hasattr(configs, "Prediction")
}


def parse(args: list[str] | None = None) -> PredictConfig:
    """Returns the flags of the task that `--task` names."""
    kind = _KINDS.get(
        cli.read_choice("--task", _KINDS, args, _PROG), PredictConfig
    )
    doc = f"{__doc__}\nTasks:"
    for name, configs in _KINDS.items():
        doc += f"\n  {name}: {configs.__doc__}"
    return cli.read_flags(kind, args, _PROG, doc)


def predict(config: PredictConfig) -> None:
    """Predicts, writes and prints; see `predict` of the task's `task.py`."""
    cli.import_tensorflow()
    folder = TASKS[config.task].__package__
    task = importlib.import_module(f"{folder}.task")
    for name, value in task.predict(config).items():
        print(f"{name} {value:.4f}")
    print(f"wrote {config.output}")


def main(args: list[str] | None = None) -> int:
    return cli.run(predict, parse(args), _PROG)


if __name__ == "__main__":
    sys.exit(main())
