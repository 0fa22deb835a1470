"""Configurations of training runs: frozen dataclasses.

A run is one dataclass. Every part except `run` decides what is learned; to
continue a run, these parts must be the same as before.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import tyro

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


StrategyName = Literal["one_device", "mirrored", "multi_worker", "tpu"]

_Part = TypeVar("_Part", bound="DataclassInstance")


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
    # Weights in bfloat16 are too coarse for small updates; gradients in float16
    # vanish unless losses are scaled.
    dtype: Literal["float32", "mixed_bfloat16", "float64"] = "float32"
    """Keras dtype policy."""


@dataclasses.dataclass(frozen=True)
class StartConfig(ModelConfig):
    """The encoder to start from: a preset's, or one of a new shape."""

    # None: that of `init`. `read_start` fills it in, hence `type: ignore`.
    num_layers: int | None = None  # type: ignore[assignment]
    """Transformer blocks. Default: those of init."""
    num_heads: int | None = None  # type: ignore[assignment]
    """Attention heads of each block. Default: those of init."""
    hidden_dim: int | None = None  # type: ignore[assignment]
    """Width of a token and of the embedding. Default: that of init."""
    intermediate_dim: int | None = None  # type: ignore[assignment]
    """Width of the feed-forward layers. Default: that of init."""
    head_size: int | None = None
    """Size of each head. Default: that of init, else max_sequence_length."""
    max_sequence_length: int | None = None  # type: ignore[assignment]
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
    decay: Literal["linear", "cosine", "rsqrt"] = "linear"
    """How the rate falls: linear or cosine, to zero at the end, or rsqrt, with
    the square root of the update."""
    optimizer: Literal["adamw", "lamb", "sgd"] = "adamw"
    """lamb is for large batches."""
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
    """Folder written by `python -m training.prepare`. For `training.distill`
    a file with a text a line, or `.jsonl` with `text`; for classification a
    file of labelled texts; for SQuAD one of its files; each of these may be
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]. For labels of words a file of CoNLL
    or CoNLL-U."""
    workdir: pathlib.Path
    """Folder of the run; an unfinished run in it is continued."""
    strategy: StrategyName = "one_device"
    """Devices; multi_worker reads TF_CONFIG."""
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
    """What all runs have in common."""

    # "module:class", imported after the flags are read.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head's dropout, and the tokenizer."""

    head_dropout: float = 0.1
    """Fraction of the head's input dropped in training."""
    vocabulary: pathlib.Path | None = None
    """File with one token per line; required without init."""
    lowercase: bool | None = None
    """Whether the tokenizer lowercases and strips accents. None: as init does,
    else yes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What every task predicts with; see `training/tasks.py`."""

    task: str
    """What the model does."""
    model: pathlib.Path
    """Preset of the task, such as WORKDIR/preset of training.finetune."""
    input: str
    """File to predict for."""
    output: pathlib.Path
    """File to write."""
    batch_size: int = 64
    """Sequences computed at once."""


def named_run(kind: type[_Part], /, **flags: Any) -> _Part:
    """Makes a run from flags; each goes to the part that has such a field.

    A flag without a value and without a default stays required.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        part = field.type
        if isinstance(part, type) and dataclasses.is_dataclass(part):
            values[field.name] = named_run(part)
        elif field.default is dataclasses.MISSING:
            values[field.name] = tyro.MISSING
    return changed(kind(**values), **flags)


def changed(run: _Part, /, **flags: Any) -> _Part:
    """Returns a run with other values of some flags."""
    for name, part in vars(run).items():
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            own = {
                flag: flags.pop(flag) for flag in vars(part) if flag in flags
            }
            flags[name] = changed(flags.get(name, part), **own)
    return dataclasses.replace(run, **flags)


def check(wanted: str, accepts: Callable[[Any], bool], **values: float) -> None:
    """Raises a `ValueError` for the first value that is not as wanted."""
    for name, value in values.items():
        if not accepts(value):
            raise ValueError(f"`{name}` must be {wanted}. Received: {value}")


def check_at_least(least: int, **values: float) -> None:
    check(f"at least {least}", lambda value: value >= least, **values)


def check_positive(**values: float) -> None:
    check("positive", lambda value: value > 0, **values)


def check_fraction(**values: float) -> None:
    check("between 0 and 1", lambda value: 0 <= value <= 1, **values)


def check_length(longest: int, special_tokens: int, **lengths: int) -> None:
    """Checks that sequences have room for a token, and positions for them."""
    check(
        f"over {special_tokens} (the special tokens) and at most "
        f"max_sequence_length={longest}",
        lambda length: special_tokens < length <= longest,
        **lengths,
    )


def check_whole_batch(accumulation_steps: int, compared: str) -> None:
    """Checks that a loss that compares examples sees the whole batch."""
    if accumulation_steps != 1:
        raise ValueError(
            f"`accumulation_steps` must be 1: {compared} are those of the "
            f"whole batch. Received: {accumulation_steps}"
        )
