"""Runs that train a classifier of texts: fields and named runs."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import ClassVar

import tyro

from training.engine.configs import (
    FinetuneConfig,
    RunConfig,
    StartConfig,
    TrainingConfig,
)


@dataclasses.dataclass(frozen=True)
class ClassificationConfig:
    """Labelled texts or pairs of texts, and the head that classifies them."""

    validation: tuple[str, ...]
    """Held-out sources to evaluate on during training, files or tfds:NAME...
    as data is; figures are named after each, as accuracy_dev_matched."""
    sequence_length: int = 128
    """Longest text or pair, in tokens; the rest is cut off."""
    columns: tuple[str, ...] = ()
    """Columns, or JSON keys, of the text, of a second text if there is one,
    and of the label; numbers from 0 for files without a header. None finds
    those of MNLI, SNLI and GLUE."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the numbers that may stand for
    them; none takes the labels of the training data, sorted."""
    pooling_mode: str | None = None
    """Tokens to one vector: mean, cls or max; None takes that of init, else
    cls where the encoder has a pooler and mean where it has none."""
    head_dropout: float = 0.1
    """Share of the pooled vector dropped in training."""
    vocabulary: pathlib.Path | None = None
    """File with a token a line, where there is no init."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyConfig(FinetuneConfig):
    """Fine-tuning of an encoder to classify texts or pairs of texts."""

    task: ClassVar[str] = "training.classification.task:ClassificationTask"
    classification: ClassificationConfig


def mnli() -> ClassifyConfig:
    """Inference on MNLI with a trained encoder (--init), as Devlin et al.
    2018 fine-tune: three epochs."""
    return ClassifyConfig(
        config="mnli",
        model=StartConfig(),
        training=TrainingConfig(
            steps=36_800,  # 3 x 392,702 / 32
            global_batch_size=32,
            learning_rate=3e-5,
            warmup_steps=3_680,
        ),
        classification=ClassificationConfig(
            validation=tyro.MISSING,
            labels=("entailment", "neutral", "contradiction"),
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=100,
            evaluation_interval=4_000,
            checkpoint_interval=1_000,
        ),
    )


def small_nli() -> ClassifyConfig:
    """Inference on some ten thousand pairs with a trained, small encoder
    (--init): minutes on two CPU cores."""
    first = mnli()
    return dataclasses.replace(
        first,
        config="small_nli",
        training=dataclasses.replace(
            first.training,
            steps=1_000,
            learning_rate=1e-4,
            warmup_steps=100,
        ),
        classification=dataclasses.replace(
            first.classification, sequence_length=64
        ),
        run=dataclasses.replace(
            first.run,
            log_interval=10,
            evaluation_interval=250,
            checkpoint_interval=250,
        ),
    )


NAMED_RUNS: dict[str, Callable[[], ClassifyConfig]] = {
    "mnli": mnli,
    "small_nli": small_nli,
}
