"""Configurations of training runs: frozen dataclasses.

A run is one dataclass. Everything in it but `run` decides what is learned, so
a work directory is continued only by a run that agrees with it on the rest.
"""

import dataclasses
import pathlib
from typing import ClassVar

# Weights of bfloat16 are too coarse for an update to move them, and gradients
# of float16 vanish unless losses are scaled.
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
    """Size of each head; None takes max_sequence_length."""
    dropout: float = 0.1
    """Share of activations dropped in training."""
    max_sequence_length: int = 512
    """Longest input, in tokens."""
    dtype: str = "float32"
    """Keras dtype policy: float32, mixed_bfloat16 or float64."""


@dataclasses.dataclass(frozen=True)
class StartConfig(ModelConfig):
    """The encoder to start from: that of a preset, or of a new shape."""

    num_layers: int | None = None
    """Transformer blocks; None takes those of init."""
    num_heads: int | None = None
    """Attention heads of each block; None takes those of init."""
    hidden_dim: int | None = None
    """Width of a token and of the embedding; None takes that of init."""
    intermediate_dim: int | None = None
    """Width of the feed-forward layers; None takes that of init."""
    head_size: int | None = None
    """Size of each head; None takes that of init, else max_sequence_length."""
    max_sequence_length: int | None = None
    """Longest input, in tokens; None takes that of init."""
    init: pathlib.Path | None = None
    """Preset to start from, such as training.convert or another run writes;
    its tokenizer and vocabulary are used, too. None starts at random."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What is optimized, and how."""

    steps: int
    """Updates of the whole run."""
    global_batch_size: int
    """Examples per update, over all replicas together."""
    learning_rate: float
    """The rate at its peak."""
    warmup_steps: int
    """Updates over which the rate rises to its peak."""
    decay: str = "linear"
    """How the rate falls: linear or cosine, to zero at the end, or rsqrt, with
    the square root of the update."""
    optimizer: str = "adamw"
    """adamw, lamb (for large batches) or sgd."""
    weight_decay: float = 0.01
    """Decoupled decay of everything but biases and norms."""
    beta_1: float = 0.9
    """Decay of the first moment (adamw, lamb)."""
    beta_2: float = 0.999
    """Decay of the second moment (adamw, lamb)."""
    epsilon: float = 1e-6
    """Added to the root of the second moment (adamw, lamb)."""
    clip_norm: float | None = 1.0
    """Bound of the gradients' global norm; None does not clip."""
    seed: int = 0
    """Decides the initial weights, the dropout and the order of the data."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where and how a run is computed; may change on resuming.

    Losses then differ by rounding, and where there is dropout, in what is
    dropped.
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
    """Parts of a replica's batch that are computed one after the other."""
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
    """Updates between two reports of what the attention heads do, in
    TensorBoard, a multiple of log_interval; None makes none."""
    attention_sequences: int = 16
    """Held-out sequences that such a report looks at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """What all runs have in common.

    `task` is the class that trains it, `"module:class"`: importing it takes
    seconds, which reading the flags need not wait for.
    """

    task: ClassVar[str]
    config: str
    """Named configuration that the other flags change."""
    model: ModelConfig
    training: TrainingConfig
    run: RunConfig
    seeds: int = 1
    """Runs to make, of this seed and those that follow, each in a folder
    seed_N of the work directory; their mean and deviation are printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(ExperimentConfig):
    """What all fine-tuning has in common."""

    model: StartConfig
