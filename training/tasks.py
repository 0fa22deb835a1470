"""The tasks that fine-tune an encoder: a line in `TASKS` registers one.

A task's folder has `configs.py` with `NAMED_RUNS`, for `training.finetune`, and
`task.py`, which has a function `predict` if `training.predict` uses its models.
"""

import dataclasses
import pathlib
import typing
from types import ModuleType

import tyro

from training.classification import configs as classification
from training.question_answering import configs as question_answering
from training.retrieval import configs as retrieval
from training.token_classification import configs as token_classification


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
    "token_classification": FinetuningFolder(
        token_classification, "labels words"
    ),
}

_DESCRIPTIONS = {
    name: folder.predict for name, folder in TASKS.items() if folder.predict
}


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """A model, and the file to predict for."""

    task: typing.Annotated[
        str,
        tyro.conf.arg(
            constructor=tyro.extras.literal_type_from_choices(_DESCRIPTIONS),
            help="; ".join(map(" ".join, _DESCRIPTIONS.items())) + ".",
        ),
    ]
    model: pathlib.Path
    """Preset of the task, such as WORKDIR/preset of training.finetune."""
    input: str
    """SQuAD's JSON or tfds:squad/v1.1:SPLIT; a .tsv, .csv or .jsonl file of
    texts or tfds:NAME[/CONFIG][:VERSION][:SPLIT]; CoNLL's columns or .conllu
    to label words."""
    output: pathlib.Path
    """File to write. For SQuAD the official format, a JSON object from each
    question's id to its answer; for classes a .jsonl with a line an example;
    for words CoNLL's, a word, a tab and its label per line."""
    n_best_output: pathlib.Path | None = None
    """SQuAD: a JSON file for the best answers to each question, with their
    probabilities."""
    n_best: int = 20
    """SQuAD: the most answers to a question in n_best_output."""
    max_answer_length: int = 30
    """SQuAD: the most tokens of an answer."""
    columns: tuple[str, ...] = ()
    """Classification: columns, or keys, of the text, of a second text if
    there is one, and of the label; see training.finetune."""
    column: int | None = None
    """Labels of words: their column, from 0; see training.finetune."""
    unlabelled: bool = False
    """Classification, labels of words: the input has no column of labels."""
    batch_size: int = 64
    """Sequences computed at once."""
