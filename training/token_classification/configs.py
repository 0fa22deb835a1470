"""Runs that train an encoder to label words: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar

from training.engine.configs import (
    FinetuneConfig,
    HeadConfig,
    PredictConfig,
    named_run,
)


@dataclasses.dataclass(frozen=True)
class TokenClassificationConfig(HeadConfig):
    """Sentences with a label for each word, and the head that finds them."""

    validation: str
    """Held-out sentences to evaluate on during training, a file like data."""
    sequence_length: int = 128
    """Longest sequence, in tokens; a longer sentence becomes several."""
    column: int | None = None
    """Column of the labels, from 0. None: the last one, and in .conllu files
    3, the universal part of speech."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLabelsConfig(FinetuneConfig):
    """Fine-tuning of an encoder to label the words of sentences."""

    task: ClassVar[str] = (
        "training.token_classification.task:TokenClassificationTask"
    )
    tokens: TokenClassificationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction(PredictConfig):
    """Labels words."""

    input: str
    """A file of words, like data of training.finetune."""
    output: pathlib.Path
    """File to write: a word, a tab and its label per line, and an empty line
    after each sentence."""
    column: int | None = None
    """Column of the labels, from 0; see training.finetune."""
    unlabelled: bool = False
    """The input has no labels."""


def token_labels() -> TokenLabelsConfig:
    """A label for each word, such as named entities or parts of speech, with a
    trained encoder (--init): about ten minutes on two CPU cores."""
    return named_run(
        TokenLabelsConfig,
        config="token_labels",
        steps=1_000,
        global_batch_size=32,
        learning_rate=1e-4,
        warmup_steps=100,
        log_interval=10,
        evaluation_interval=250,
        checkpoint_interval=250,
    )


NAMED_RUNS = {"token_labels": token_labels}
