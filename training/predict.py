r"""Predicts answers or classes for a file with a fine-tuned preset.

    python -m training.predict --task squad --model runs/squad/preset \
        --input dev-v1.1.json --output predictions.json

Answers the questions of a file in SQuAD's format, or classifies texts or pairs
of texts. Prints exact match and F1, or the accuracy, for the examples that
have answers or labels in the file.
"""

import dataclasses
import importlib
import sys
from typing import Annotated

import tyro

from training.engine import cli
from training.engine.configs import PredictConfig
from training.tasks import TASKS

_TASKS = {name: task.predict for name, task in TASKS.items() if task.predict}


@dataclasses.dataclass(frozen=True)
class PredictFlags(PredictConfig):
    """The same, of the tasks that there are."""

    task: Annotated[
        str,
        tyro.conf.arg(
            constructor=tyro.extras.literal_type_from_choices(_TASKS),
            help="; ".join(map(" ".join, _TASKS.items())) + ".",
        ),
    ]


def predict(config: PredictConfig) -> None:
    """Predicts, writes and prints; see `predict` of the task's `task.py`."""
    cli.import_tensorflow()
    folder = TASKS[config.task].configs.__package__
    task = importlib.import_module(f"{folder}.task")
    for name, value in task.predict(config).items():
        print(f"{name} {value:.4f}")
    print(f"wrote {config.output}")


main = cli.command(predict, PredictFlags, "training.predict", __doc__)

if __name__ == "__main__":
    sys.exit(main())
