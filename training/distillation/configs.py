"""Runs that distill an embedder: fields and named runs."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import ClassVar

import tyro

from training.engine.configs import (
    ExperimentConfig,
    ModelConfig,
    RunConfig,
    TrainingConfig,
)


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """A teacher's embeddings, and how a student is held to them."""

    teacher: pathlib.Path
    """Preset of the embedder to learn from, such as `training.convert`
    writes. Its tokenizer, pooling and prompts become the student's."""
    sequence_length: int
    """Longest text, in tokens; the rest is cut off, for the teacher too."""
    prompt: str | None = None
    """Name of the teacher's prompt to put before each text; None puts none."""
    embedding_weight: float = 1.0
    """Weight of 1 - cosine between the student's embedding and the teacher's
    first principal components, as many as the student has dimensions."""
    similarity_weight: float = 1.0
    """Weight of the divergence between the teacher's and the student's
    similarities of each text to the others of the batch."""
    similarity_temperature: float = 0.05
    """Similarities are divided by it before the softmax."""
    attention_weight: float = 0.0
    """Weight of the divergence between the attention relations of the last
    blocks. Over 0 the teacher runs in every update."""
    relation_heads: int = 1
    """Heads of these relations; divides the width of all heads of both."""
    copy_embeddings: bool = True
    """Start with the principal components of the teacher's tables of tokens,
    positions and segments."""
    validation_texts: int = 1024
    """Texts set aside to evaluate on during training."""
    cache: pathlib.Path | None = None
    """Folder of the teacher's embeddings, which several runs may share; None
    is `teacher` in the work directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(ExperimentConfig):
    """Distillation of an embedder into a smaller one."""

    task: ClassVar[str] = "training.distillation.task:DistillationTask"
    distillation: DistillationConfig


def compact() -> DistillConfig:
    """Four layers, d = 192, 4 heads of 128: half of a MiniLM."""
    return DistillConfig(
        config="compact",
        model=ModelConfig(
            num_layers=4,
            num_heads=4,
            hidden_dim=192,
            intermediate_dim=768,
            dropout=0.0,  # the teacher's embeddings regularize
            max_sequence_length=128,  # and so head_size=128
        ),
        training=TrainingConfig(
            steps=2_000,
            global_batch_size=256,
            learning_rate=1e-3,
            warmup_steps=200,
        ),
        distillation=DistillationConfig(
            teacher=tyro.MISSING, sequence_length=128
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            evaluation_interval=500,
            checkpoint_interval=500,
        ),
    )


def paper_d512() -> DistillConfig:
    """From a teacher of BERT-Large's size to d = 512, 32 heads of 128."""
    return DistillConfig(
        config="paper_d512",
        model=ModelConfig(
            num_layers=24,
            num_heads=32,
            hidden_dim=512,
            intermediate_dim=4096,
            head_size=128,
            max_sequence_length=128,
            dtype="mixed_bfloat16",
        ),
        training=TrainingConfig(
            steps=100_000,
            global_batch_size=1024,
            learning_rate=2e-4,
            warmup_steps=5_000,
        ),
        distillation=DistillationConfig(
            teacher=tyro.MISSING, sequence_length=128
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=100,
            evaluation_interval=5_000,
            checkpoint_interval=1_000,
        ),
    )


NAMED_RUNS: dict[str, Callable[[], DistillConfig]] = {
    "compact": compact,
    "paper_d512": paper_d512,
}
