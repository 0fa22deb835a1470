"""Runs that distill an embedder: fields and named runs."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import ClassVar

from training.engine.configs import ExperimentConfig, changed, named_run


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """A teacher's embeddings, and the losses that fit a student to them."""

    teacher: pathlib.Path
    """Preset of the embedder to learn from, such as `training.convert`
    writes. Its tokenizer, pooling and prompts become the student's."""
    sequence_length: int
    """Longest text, in tokens, for the teacher, too; the rest is cut off."""
    prompt: str | None = None
    """Name of the teacher's prompt to put before each text."""
    embedding_weight: float = 1.0
    """Weight of 1 - cosine between the student's embedding and as many
    principal components of the teacher's."""
    similarity_weight: float = 1.0
    """Weight of the divergence between the teacher's and the student's
    similarities of each text to the rest of the batch."""
    similarity_temperature: float = 0.05
    """Divides similarities before the softmax."""
    validation_texts: int = 1024
    """Texts set aside to evaluate on during training."""
    cache: pathlib.Path | None = None
    """Folder of the teacher's embeddings, which runs may share. Default:
    `teacher` in the work directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(ExperimentConfig):
    """Distillation of an embedder into a smaller one."""

    task: ClassVar[str] = "training.distillation.task:DistillationTask"
    distillation: DistillationConfig


def compact() -> DistillConfig:
    """Four layers, d = 192, 4 heads of 128: half of a MiniLM."""
    return named_run(
        DistillConfig,
        config="compact",
        num_layers=4,
        num_heads=4,
        hidden_dim=192,
        intermediate_dim=768,
        dropout=0.0,  # the teacher's embeddings regularize
        max_sequence_length=128,  # and so head_size=128
        steps=2_000,
        global_batch_size=256,
        learning_rate=1e-3,
        warmup_steps=200,
        sequence_length=128,
        evaluation_interval=500,
        checkpoint_interval=500,
    )


def paper_d512() -> DistillConfig:
    """From a teacher of BERT-Large's size to d = 512, 32 heads of 128."""
    return changed(
        compact(),
        config="paper_d512",
        num_layers=24,
        num_heads=32,
        hidden_dim=512,
        intermediate_dim=4096,
        head_size=128,
        dropout=0.1,
        dtype="mixed_bfloat16",
        steps=100_000,
        global_batch_size=1024,
        learning_rate=2e-4,
        warmup_steps=5_000,
        log_interval=100,
        evaluation_interval=5_000,
        checkpoint_interval=1_000,
    )


NAMED_RUNS: dict[str, Callable[[], DistillConfig]] = {
    "compact": compact,
    "paper_d512": paper_d512,
}
