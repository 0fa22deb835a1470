"""Runs that train a language model: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar

from training.engine.configs import ExperimentConfig, named_run


@dataclasses.dataclass(frozen=True)
class CausalLMConfig:
    """A language model's task: the next token of a text."""

    sequence_length: int
    """Longest sequence, in tokens; longer documents are cut."""
    shuffle_tokens: int = 2**26
    """Tokens in memory at a time; examples are shuffled among these."""
    evaluation_examples: int = 1024
    """Held-out sequences to evaluate on during training; if there are more,
    metrics are estimates."""
    init: pathlib.Path | None = None
    """Preset of a language model to start from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(ExperimentConfig):
    """Training of a language model on text."""

    task: ClassVar[str] = "training.causal_lm.task:LanguageModelTask"
    language_model: CausalLMConfig


def small_lm() -> LanguageModelConfig:
    """Two layers, d = 128, heads of the sequence length, 64: ten minutes on
    two CPU cores, with a vocabulary of 8,000."""
    return named_run(
        LanguageModelConfig,
        config="small_lm",
        num_layers=2,
        num_heads=8,
        hidden_dim=128,
        intermediate_dim=512,
        dropout=0.0,  # it sees its text once or twice
        max_sequence_length=64,  # and so head_size=64
        steps=5_000,
        # Few updates of larger batches would learn token frequencies only.
        global_batch_size=16,
        learning_rate=1e-3,
        warmup_steps=500,
        sequence_length=64,
        log_interval=50,
        evaluation_interval=500,
        checkpoint_interval=500,
    )


def lm1b() -> LanguageModelConfig:
    """LM1B as in Bhojanapalli et al. 2020, section 4.1: d = 256, 16 heads of
    32; theirs have from 4 to 70 (--num_heads), the baseline --hidden_dim 512
    --num_heads 8 --head_size 64.

    Their positions are sinusoidal, ours are learned.
    """
    return named_run(
        LanguageModelConfig,
        config="lm1b",
        num_layers=6,
        num_heads=16,
        hidden_dim=256,
        intermediate_dim=1024,
        head_size=32,
        max_sequence_length=256,
        dtype="mixed_bfloat16",
        steps=250_000,
        global_batch_size=4096,
        # Tensor2Tensor divides their 0.1 by the square root of the 10,000
        # warm-up updates.
        learning_rate=1e-3,
        warmup_steps=10_000,
        decay="rsqrt",
        sequence_length=256,
        evaluation_examples=3 * 4096,
        # About 10,000 predictions at a time, of 32,000 logits each.
        accumulation_steps=16,
        log_interval=100,
        evaluation_interval=5_000,
        checkpoint_interval=1_000,
    )


NAMED_RUNS = {"small_lm": small_lm, "lm1b": lm1b}
