"""Runs that pre-train an encoder: fields and named runs."""

import dataclasses
import pathlib
from typing import ClassVar

from training.engine.configs import ExperimentConfig, changed, named_run


@dataclasses.dataclass(frozen=True)
class MaskedLMConfig:
    """BERT's two tasks: masked tokens and next sentences."""

    sequence_length: int
    """Length of every example, in tokens."""
    max_predictions: int
    """Most masked tokens per example."""
    mask_selection_rate: float = 0.15
    """Fraction of the tokens to predict."""
    mask_token_rate: float = 0.8
    """Fraction of these replaced by [MASK]."""
    random_token_rate: float = 0.1
    """Fraction of these replaced by a random token; the rest stay."""
    whole_word: bool = False
    """Mask all tokens of a word or none."""
    next_sentence: bool = True
    """Make examples pairs, and predict which segments are of one text."""
    shuffle_tokens: int = 2**26
    """Tokens in memory at a time; examples are shuffled among these."""
    evaluation_examples: int = 1024
    """Held-out examples to evaluate on during training."""
    init: pathlib.Path | None = None
    """Preset to start from, such as an earlier stage's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(ExperimentConfig):
    """Pre-training of an encoder on text."""

    task: ClassVar[str] = "training.masked_lm.task:MaskedLMTask"
    masked_lm: MaskedLMConfig


def small() -> PretrainConfig:
    """Four layers, d = 128: an hour on two CPU cores."""
    return named_run(
        PretrainConfig,
        config="small",
        num_layers=4,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=512,
        head_size=128,
        dropout=0.0,  # it sees its text a few times only
        max_sequence_length=128,
        steps=5_000,
        global_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=500,
        sequence_length=128,
        max_predictions=20,
        log_interval=20,
        evaluation_interval=500,
        checkpoint_interval=500,
    )


def paper_stage1() -> PretrainConfig:
    """Bhojanapalli et al. 2020, d = 512, 8 heads of 128: at length 128.

    Their best has --num_heads 32, the baseline BERT-Large --hidden_dim 1024
    --num_heads 16 --head_size 64 (`keras_fixedhead.presets` has every shape
    of the tables).
    """
    return named_run(
        PretrainConfig,
        config="paper_stage1",
        num_layers=24,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=4096,
        head_size=128,
        dtype="mixed_bfloat16",
        steps=450_000,
        global_batch_size=1024,
        learning_rate=1e-4,
        warmup_steps=5_000,
        sequence_length=128,
        max_predictions=20,
        log_interval=100,
        evaluation_interval=5_000,
        checkpoint_interval=1_000,
    )


def paper_stage2() -> PretrainConfig:
    """The same at length 512; --init takes the preset of the first stage."""
    return changed(
        paper_stage1(),
        config="paper_stage2",
        steps=50_000,
        warmup_steps=3_000,
        sequence_length=512,
        max_predictions=77,
    )


NAMED_RUNS = {
    "small": small,
    "paper_stage1": paper_stage1,
    "paper_stage2": paper_stage2,
}
