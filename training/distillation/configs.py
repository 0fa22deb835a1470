"""Runs that distill an embedder: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar

from training.engine.configs import FinetuneConfig, changed, named_run


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """A teacher's embeddings, and the losses that fit a student to them."""

    sequence_length: int
    """Longest text, in tokens, for the teacher, too; the rest is cut off."""
    teacher: pathlib.Path | None = None
    """Preset of the embedder to learn from, such as `training.convert`
    writes. Without init, its tokenizer, pooling and prompts become the
    student's."""
    teacher_embeddings: pathlib.Path | None = None
    """In place of a teacher, its embeddings of the texts in `data`, from any
    framework: .npy `[N, E]`, a row for each text that is not blank, or .parquet
    with the columns `text` and `embedding`. Needs init."""
    prompt: str | None = None
    """Name of the prompt to put before each text."""
    embedding_weight: float = 1.0
    """Weight of 1 - cosine between the student's embedding and as many
    principal components of the teacher's."""
    similarity_weight: float = 1.0
    """Weight of the divergence between the teacher's and the student's
    similarities of each text to the rest of the batch."""
    state_weight: float = 0.0
    """Weight of the squared error of the student's hidden states, relative to
    the teacher's. Needs an init that `training.shrink` made of the teacher."""
    attention_weight: float = 0.0
    """Weight of the divergence of the student's attention scores from the
    teacher's, head by head; like state_weight, it needs such an init."""
    similarity_temperature: float = 0.05
    """Divides similarities before the softmax."""
    random_texts: int = 0
    """How many texts of random words of the teacher's vocabulary to add to
    those to train on. They teach the student tokens that `data` lacks."""
    validation_texts: int = 1024
    """Texts set aside to evaluate on during training."""
    cache: pathlib.Path | None = None
    """Folder of the teacher's embeddings, which runs may share. Default:
    `teacher` in the work directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillConfig(FinetuneConfig):
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


def heal() -> DistillConfig:
    """From what `training.shrink` wrote (--init) back to its teacher."""
    return named_run(
        DistillConfig,
        config="heal",
        dropout=0.0,
        steps=2_000,
        global_batch_size=32,
        learning_rate=1e-4,  # higher ones first undo what was fitted
        warmup_steps=50,
        sequence_length=128,
        embedding_weight=3.0,
        state_weight=1.0,
        evaluation_interval=500,
        checkpoint_interval=500,
    )


NAMED_RUNS = {"compact": compact, "heal": heal, "paper_d512": paper_d512}
