"""The tasks that fine-tune an encoder: a line in `TASKS` registers one.

A task's folder has `configs.py` with `NAMED_RUNS`, for `training.finetune`, and
`task.py`, which has a function `predict` if `training.predict` uses its models.
"""

import typing
from types import ModuleType

from training.classification import configs as classification
from training.question_answering import configs as question_answering
from training.retrieval import configs as retrieval


class FinetuningFolder(typing.NamedTuple):
    """The `configs` of a task's folder, and what its `predict` does, if any."""

    configs: ModuleType
    predict: str | None = None


TASKS = {
    "retrieval": FinetuningFolder(retrieval),
    "classification": FinetuningFolder(
        classification, "classifies texts or pairs"
    ),
    "squad": FinetuningFolder(question_answering, "answers questions"),
}
