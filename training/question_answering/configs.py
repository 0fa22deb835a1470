"""Runs that train an encoder to find answers: fields and named runs."""

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
class SpanLabelingConfig(HeadConfig):
    """Questions, windows of their contexts, and the head that finds answers."""

    validation: str
    """Held-out questions to evaluate on during training, a file of SQuAD's
    or tfds:squad/v1.1:SPLIT."""
    sequence_length: int = 384
    """Longest question and part of its context together, in tokens."""
    document_stride: int = 128
    """Tokens from the start of one window of a context to the next."""
    max_question_length: int = 64
    """Longest question, in tokens; the rest is cut off."""
    n_best: int = 20
    """Candidate answers to compare per question."""
    max_answer_length: int = 30
    """Longest answer, in tokens."""
    training_questions: int | None = None
    """Train on this many questions, drawn by the seed. None: on all."""
    validation_questions: int | None = None
    """Evaluate on this many questions. None: on all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Fine-tuning of an encoder to find answers in texts."""

    task: ClassVar[str] = "training.question_answering.task:SpanLabelingTask"
    spans: SpanLabelingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction(PredictConfig):
    """Answers questions."""

    input: str
    """SQuAD's JSON, or tfds:squad/v1.1:SPLIT."""
    output: pathlib.Path
    """File to write in SQuAD's official format, a JSON object from each
    question's id to its answer."""
    n_best_output: pathlib.Path | None = None
    """A JSON file for the best answers to each question, with their
    probabilities."""
    n_best: int = 20
    """The most answers to a question in n_best_output."""
    max_answer_length: int = 30
    """The most tokens of an answer."""


def squad() -> SquadConfig:
    """Answers in paragraphs, SQuAD v1.1, with a trained encoder (--init), as
    Devlin et al. 2018 fine-tune: three epochs."""
    return named_run(
        SquadConfig,
        config="squad",
        steps=8_300,  # 3 x 88,600 windows / 32
        global_batch_size=32,
        learning_rate=5e-5,
        warmup_steps=830,
        log_interval=50,
        evaluation_interval=1_000,
        checkpoint_interval=500,
    )


def small_squad() -> SquadConfig:
    """SQuAD v1.1 with a trained, small encoder (--init) on 10,000 of its
    questions: an hour on two CPU cores."""
    return changed(
        squad(),
        config="small_squad",
        steps=1_000,
        learning_rate=2e-4,
        warmup_steps=100,
        sequence_length=256,
        training_questions=10_000,
        validation_questions=1_000,
        log_interval=10,
        evaluation_interval=250,
        checkpoint_interval=250,
    )


NAMED_RUNS = {"squad": squad, "small_squad": small_squad}
