"""Runs that train a text classifier: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar

from training.engine.configs import (
    FinetuneConfig,
    HeadConfig,
    PredictConfig,
    changed,
    named_run,
)


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(HeadConfig):
    """Labelled texts or pairs of texts, and the head that classifies them."""

    validation: tuple[str, ...]
    """Held-out sources to evaluate on during training, files or tfds:NAME...
    like data. Metrics are named after each, such as accuracy_dev_matched."""
    sequence_length: int = 128
    """Longest text or pair, in tokens; the rest is cut off."""
    columns: tuple[str, ...] = ()
    """Columns, or JSON keys, of the text, of the second text if there is one,
    and of the label; numbers from 0 for files without a header. The names in
    MNLI, SNLI and GLUE are found without it."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the numbers that may stand for
    them. Default: the labels of the training data, sorted."""
    pooling_mode: str | None = None
    """Pooling: mean, cls or max. None: as in init, else cls if the encoder has
    a pooler and mean if not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyConfig(FinetuneConfig):
    """Fine-tuning of an encoder to classify texts or pairs of texts."""

    task: ClassVar[str] = "training.classification.task:ClassificationTask"
    classification: ClassificationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction(PredictConfig):
    """Classifies texts or pairs of texts."""

    input: str
    """A .tsv, .csv or .jsonl file of texts, or
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""
    output: pathlib.Path
    """A .jsonl file to write, with a line an example."""
    columns: tuple[str, ...] = ()
    """Columns, or keys, of the text, of a second text if there is one, and of
    the label; see training.finetune."""
    unlabelled: bool = False
    """The input has no column of labels."""


def mnli() -> ClassifyConfig:
    """Inference on MNLI with a trained encoder (--init), as Devlin et al.
    2018 fine-tune: three epochs."""
    return named_run(
        ClassifyConfig,
        config="mnli",
        steps=36_800,  # 3 x 392,702 / 32
        global_batch_size=32,
        learning_rate=3e-5,
        warmup_steps=3_680,
        labels=("entailment", "neutral", "contradiction"),
        log_interval=100,
        evaluation_interval=4_000,
        checkpoint_interval=1_000,
    )


def small_nli() -> ClassifyConfig:
    """Inference on some ten thousand pairs with a trained, small encoder
    (--init): minutes on two CPU cores."""
    return changed(
        mnli(),
        config="small_nli",
        steps=1_000,
        learning_rate=1e-4,
        warmup_steps=100,
        sequence_length=64,
        log_interval=10,
        evaluation_interval=250,
        checkpoint_interval=250,
    )


NAMED_RUNS = {"mnli": mnli, "small_nli": small_nli}
