r"""Predicts answers or labels for a file with a fine-tuned preset.

    python -m training.predict --task squad --model runs/squad/preset \
        --input dev-v1.1.json --output predictions.json

Prints the task's metrics for the examples that have answers or labels in the
file.
"""

import importlib
import sys

from training.engine import cli
from training.tasks import TASKS, PredictConfig


def predict(config: PredictConfig) -> None:
    """Predicts, writes and prints; see `predict` of the task's `task.py`."""
    cli.import_tensorflow()
    folder = TASKS[config.task].configs.__package__
    task = importlib.import_module(f"{folder}.task")
    for name, value in task.predict(config).items():
        print(f"{name} {value:.4f}")
    print(f"wrote {config.output}")


main = cli.command(predict, PredictConfig, "training.predict", __doc__)

if __name__ == "__main__":
    sys.exit(main())
