"""Configurations of training runs: frozen dataclasses.

A run is one dataclass. All of it but `run` decides what is learned, and must
agree with an earlier run in the same work directory, to continue that run.
"""

import dataclasses
import pathlib
from typing import ClassVar

# Weights in bfloat16 are too coarse for small updates; gradients in float16
# vanish unless losses are scaled.
DTYPES = ("float32", "mixed_bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The encoder's shape."""

    num_layers: int
    """Transformer blocks."""
    num_heads: int
    """Attention heads of each block."""
    hidden_dim: int
    """Width of a token and of the embedding."""
    intermediate_dim: int
    """Width of the feed-forward layers."""
    head_size: int | None = None
    """Size of each head. Default: max_sequence_length."""
    dropout: float = 0.1
    """Fraction of activations dropped in training."""
    max_sequence_length: int = 512
    """Longest input, in tokens."""
    dtype: str = "float32"
    """Keras dtype policy: float32, mixed_bfloat16 or float64."""


@dataclasses.dataclass(frozen=True)
class StartConfig(ModelConfig):
    """The encoder to start from: a preset's, or one of a new shape."""

    num_layers: int | None = None
    """Transformer blocks. Default: those of init."""
    num_heads: int | None = None
    """Attention heads of each block. Default: those of init."""
    hidden_dim: int | None = None
    """Width of a token and of the embedding. Default: that of init."""
    intermediate_dim: int | None = None
    """Width of the feed-forward layers. Default: that of init."""
    head_size: int | None = None
    """Size of each head. Default: that of init, else max_sequence_length."""
    max_sequence_length: int | None = None
    """Longest input, in tokens. Default: that of init."""
    init: pathlib.Path | None = None
    """Preset to start from, written by training.convert or another run, with
    its tokenizer and vocabulary. Default: random weights."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How the model is optimized."""

    steps: int
    """Updates of the whole run."""
    global_batch_size: int
    """Examples per update, over all replicas together."""
    learning_rate: float
    """Peak learning rate."""
    warmup_steps: int
    """Updates in which the rate rises to its peak."""
    decay: str = "linear"
    """How the rate falls: linear or cosine, to zero at the end, or rsqrt, with
    the square root of the update."""
    optimizer: str = "adamw"
    """adamw, lamb (for large batches) or sgd."""
    weight_decay: float = 0.01
    """Decoupled decay of all weights but biases and norms."""
    beta_1: float = 0.9
    """Decay of the first moment (adamw, lamb)."""
    beta_2: float = 0.999
    """Decay of the second moment (adamw, lamb)."""
    epsilon: float = 1e-6
    """Added to the root of the second moment (adamw, lamb)."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradients; None does not clip."""
    seed: int = 0
    """Decides the initial weights, the dropout and the order of the data."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where and how a run is computed; may change on resuming.

    Losses then differ by rounding and by the draws of dropout.
    """

    data: pathlib.Path
    """Folder written by `python -m training.prepare`; for `training.distill`
    a file with a text a line, or `.jsonl` with `text`; for classification a
    file of labelled texts, for SQuAD one of its files, or for either
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""
    workdir: pathlib.Path
    """Folder of the run; an unfinished run in it is continued."""
    strategy: str = "one_device"
    """Devices: one_device, mirrored, multi_worker (TF_CONFIG) or tpu."""
    packed: bool = True
    """Compute real tokens only; False pads to fixed lengths (XLA, TPU)."""
    accumulation_steps: int = 1
    """Parts in which a replica computes its batch, one after the other."""
    jit_compile: bool = False
    """Compile the update with XLA; needs fixed shapes and one replica."""
    log_interval: int = 10
    """Updates between two reports of loss and speed; divides the other
    intervals."""
    evaluation_interval: int = 200
    """Updates between two evaluations, a multiple of log_interval. The first
    evaluation comes before the first update."""
    checkpoint_interval: int = 200
    """Updates between two checkpoints, a multiple of log_interval."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    attention_interval: int | None = None
    """Updates between two reports on the attention heads in TensorBoard, a
    multiple of log_interval. Default: no reports."""
    attention_sequences: int = 16
    """Held-out sequences in such a report."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """What all runs have in common.

    `task` names the class that trains it, "module:class". It is imported after
    the flags are read, because it imports TensorFlow.
    """

    task: ClassVar[str]
    config: str
    """Named configuration, which the other flags change."""
    model: ModelConfig
    training: TrainingConfig
    run: RunConfig
    seeds: int = 1
    """Runs to make, with this seed and the next ones, each in a folder seed_N
    of the work directory. Prints their mean and deviation."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(ExperimentConfig):
    """What all fine-tuning has in common."""

    model: StartConfig
