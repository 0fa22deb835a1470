"""Runs that train an encoder for retrieval: fields and named runs."""

import dataclasses
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
class RetrievalConfig:
    """The pairs of a dual encoder, and its contrastive loss."""

    query_length: int
    """Longest query, in tokens; the rest is cut off."""
    document_length: int
    """Longest document, in tokens; the rest is cut off."""
    query_prompt: str | None = None
    """Text put before each query; None takes that of init, else none."""
    document_prompt: str | None = None
    """Text put before each document; None takes that of init, else none."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""
    pooling_mode: str | None = None
    """Tokens to one embedding: mean, cls or max; None takes that of init, else
    mean."""
    temperature: float = 0.05
    """Cosine similarities are divided by it; the start where it is learned."""
    learn_temperature: bool = False
    """Whether the temperature trains with the model."""
    hard_negatives: int = 0
    """Documents that do not answer the query, of those in the data, beside
    the other documents of the batch; drawn anew in each epoch."""
    matryoshka_dims: tuple[int, ...] = ()
    """Embedding sizes that are trained beside the full one, each the first
    numbers of it (Kusupati et al. 2022); a served model is cut to one by
    export.saved_model --embedding_dim."""
    crop_document: float = 0.0
    """Probability that a document shrinks to some consecutive sentences."""
    inverse_cloze: float = 0.0
    """Probability that a sentence cut out of the document is the query."""
    validation_pairs: int = 512
    """Training pairs set aside to evaluate on during training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrieveConfig(FinetuneConfig):
    """Fine-tuning of an encoder for retrieval."""

    task: ClassVar[str] = "training.retrieval.task:RetrievalTask"
    retrieval: RetrievalConfig


def demo_retrieval() -> RetrieveConfig:
    """Search in documentation: minutes on two CPU cores, from scratch."""
    return RetrieveConfig(
        config="demo_retrieval",
        model=StartConfig(
            num_layers=1,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=512,
            dropout=0.0,  # changed pairs regularize at no cost
            max_sequence_length=96,  # and so head_size=96
        ),
        training=TrainingConfig(
            steps=300,
            global_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=50,
        ),
        retrieval=RetrievalConfig(
            query_length=32,
            document_length=96,
            crop_document=0.25,
            inverse_cloze=0.25,
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            evaluation_interval=100,
            checkpoint_interval=100,
        ),
    )


def retrieval() -> RetrieveConfig:
    """Search with a trained encoder (--init), its embedding in three sizes."""
    return RetrieveConfig(
        config="retrieval",
        model=StartConfig(dropout=0.0),
        training=TrainingConfig(
            steps=1_000,
            global_batch_size=64,
            learning_rate=5e-5,
            warmup_steps=100,
        ),
        retrieval=RetrievalConfig(
            query_length=48,
            document_length=256,
            matryoshka_dims=(192, 96),
        ),
        run=RunConfig(data=tyro.MISSING, workdir=tyro.MISSING),
    )


def compact_retrieval() -> RetrieveConfig:
    """One layer, d = 256, 4 heads of 256, from scratch: an hour on two CPU
    cores."""
    return RetrieveConfig(
        config="compact_retrieval",
        model=StartConfig(
            num_layers=1,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=1024,
            dropout=0.0,  # changed pairs regularize at no cost
            max_sequence_length=256,  # and so head_size=256
        ),
        training=TrainingConfig(
            steps=1_000,
            global_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=100,
        ),
        retrieval=RetrievalConfig(
            query_length=48,
            document_length=256,
            crop_document=0.25,
            inverse_cloze=0.25,
            matryoshka_dims=(128, 64),
        ),
        run=RunConfig(data=tyro.MISSING, workdir=tyro.MISSING),
    )


NAMED_RUNS: dict[str, Callable[[], RetrieveConfig]] = {
    "demo_retrieval": demo_retrieval,
    "retrieval": retrieval,
    "compact_retrieval": compact_retrieval,
}
