"""Runs that train an encoder to find answers: fields and named runs."""

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
class SpanLabelingConfig:
    """Questions, the windows of their contexts, and the head that finds
    answers in them."""

    validation: str
    """Held-out questions to evaluate on during training, a file of SQuAD's
    or tfds:squad/v1.1:SPLIT."""
    sequence_length: int = 384
    """Longest question and part of its context together, in tokens."""
    document_stride: int = 128
    """Tokens from the start of a window of a context to that of the next."""
    max_question_length: int = 64
    """Longest question, in tokens; the rest is cut off."""
    head_dropout: float = 0.1
    """Share of what the head sees dropped in training."""
    n_best: int = 20
    """Answers to a question that are compared."""
    max_answer_length: int = 30
    """Longest answer, in tokens."""
    training_questions: int | None = None
    """Train on some of the questions, drawn by the seed; None takes all."""
    validation_questions: int | None = None
    """Evaluate on some of them; None takes all."""
    vocabulary: pathlib.Path | None = None
    """File with a token a line, where there is no init."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Fine-tuning of an encoder to find answers in texts."""

    task: ClassVar[str] = "training.question_answering.task:SpanLabelingTask"
    spans: SpanLabelingConfig


def squad() -> SquadConfig:
    """Answers in paragraphs, SQuAD v1.1, with a trained encoder (--init), as
    Devlin et al. 2018 fine-tune: three epochs."""
    return SquadConfig(
        config="squad",
        model=StartConfig(),
        training=TrainingConfig(
            steps=8_300,  # 3 x 88,600 windows / 32
            global_batch_size=32,
            learning_rate=5e-5,
            warmup_steps=830,
        ),
        spans=SpanLabelingConfig(validation=tyro.MISSING),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=50,
            evaluation_interval=1_000,
            checkpoint_interval=500,
        ),
    )


def small_squad() -> SquadConfig:
    """SQuAD v1.1 with a trained, small encoder (--init) on 10,000 of its
    questions: an hour on two CPU cores."""
    first = squad()
    return dataclasses.replace(
        first,
        config="small_squad",
        training=dataclasses.replace(
            first.training, steps=1_000, learning_rate=2e-4, warmup_steps=100
        ),
        spans=dataclasses.replace(
            first.spans,
            sequence_length=256,
            training_questions=10_000,
            validation_questions=1_000,
        ),
        run=dataclasses.replace(
            first.run,
            log_interval=10,
            evaluation_interval=250,
            checkpoint_interval=250,
        ),
    )


NAMED_RUNS: dict[str, Callable[[], SquadConfig]] = {
    "squad": squad,
    "small_squad": small_squad,
}
