"""The flags of `training.predict`."""

import dataclasses
import pathlib
from typing import Literal


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """A model, and the file to predict for."""

    task: Literal["squad", "classification", "token_classification"]
    """squad answers questions; classification classifies texts or pairs."""
    model: pathlib.Path
    """Preset of the task, such as WORKDIR/preset of training.finetune."""
    input: str
    """SQuAD's JSON or tfds:squad/v1.1:SPLIT; a .tsv, .csv or .jsonl file of
    texts or tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""
    output: pathlib.Path
    """File to write. For SQuAD the official format, a JSON object from each
    question's id to its answer; for classes a .jsonl with a line an example."""
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
    """Token classification: column of the labels, from 0; see
    training.finetune."""
    unlabelled: bool = False
    """Classification: the input has no column of labels."""
    batch_size: int = 64
    """Sequences computed at once."""
