"""Encoders made narrower or shallower; every head keeps its size.

Shape letters: P real tokens of a batch, D the embedding size before, C after
(channels kept).

The residual stream keeps C of its D channels, and the token embeddings their C
principal components. Then, block by block, least squares fit each projection on
the states that the smaller model itself computes, so later blocks correct for
what earlier ones lost. No gradient step is taken. Related: SliceGPT
(https://arxiv.org/abs/2401.15024) rotates and slices pre-norm models; Minitron
(https://arxiv.org/abs/2407.14679) and weight subcloning
(https://arxiv.org/abs/2312.09299) choose channels and train on.
"""

import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.growth import (
    backbone_of,
    refuse_changed_kernels,
    sizes_of,
    task_around,
    to_numpy,
)
from keras_fixedhead.progress import progress
from keras_fixedhead.shrink.fit import Fit, States
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder, pool

# The last state, which is pooled, counts as much as so many others.
_LAST_STATE_WEIGHT = 3.0
# Passes over the batches: to choose channels and for the embeddings; and for
# each block.
_PASSES = 5
_PASSES_PER_BLOCK = 10
# Batches on which layers to drop are compared.
_COMPARED_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class ShrinkReport:
    """What a shrunk model keeps of the one before, on the texts fitted to.

    R2 is the share of the variance that is explained, 1 if all of it.
    """

    tokens: int
    layers: tuple[int, ...]  # kept, counted from 0
    channels: tuple[int, ...]  # kept
    state_r2: tuple[float, ...]  # of the embeddings and after each block
    logit_r2: tuple[float, ...]  # of each block's attention logits


def shrink(
    model: keras.Model,
    batches: Iterable[dict],
    hidden_dim: int | None = None,
    num_layers: int | None = None,
    ridge: float = 1e-3,
    verbose: bool = False,
) -> tuple[keras.Model, ShrinkReport]:
    """A model with a smaller embedding size, fewer layers or both.

    The channels kept are those of the largest variance, and the layers dropped
    those that change the outputs least. Train the model further, as
    `training.distill` does, to win back what is lost.

    Args:
        model: a `FixedHeadTextEmbedder` or a `FixedHeadBackbone` without a
            pooler, neither quantized nor with LoRA.
        batches: the backbone's inputs, dictionaries of int arrays `[B, T]`;
            30,000 to 50,000 real tokens of several domains are enough. Each
            batch is in memory alone: states are in temporary files, 4 bytes
            for each number.
        hidden_dim: C, at most D. Default: D.
        num_layers: how many layers to keep. Default: all.
        ridge: pulls each fit towards the sliced weights; relative to the mean
            square of the inputs of the projection.
        verbose: whether to show progress.

    Returns:
        The new model, without an optimizer's state, and a `ShrinkReport`.
    """
    teacher = _supported(model)
    width, depth = teacher.hidden_dim, teacher.num_layers
    hidden_dim = width if hidden_dim is None else hidden_dim
    num_layers = depth if num_layers is None else num_layers
    hidden_dim = positive_int("hidden_dim", hidden_dim, most=width)
    num_layers = positive_int("num_layers", num_layers, most=depth)
    if (hidden_dim, num_layers) == (width, depth):
        raise ValueError(
            "`hidden_dim` or `num_layers` must be smaller than now, "
            f"{width} and {depth}"
        )
    if not ridge > 0:
        raise ValueError(f"`ridge` must be above 0. Received: {ridge!r}")
    with tempfile.TemporaryDirectory(prefix="shrink") as folder:
        states = States(pathlib.Path(folder), batches)
        kept = _choose_layers(model, states, num_layers, verbose)
        passes = _PASSES + _PASSES_PER_BLOCK * num_layers
        label = "Shrinking" if verbose else None
        with progress(label, passes * states.batches) as states.advance:
            channels = _choose_channels(teacher, states, hidden_dim)
            config = {**teacher.get_config(), **sizes_of(teacher, kept)}
            student = type(teacher).from_config(
                {**config, "hidden_dim": hidden_dim}
            )
            fit = Fit(teacher, student, states, channels, ridge)
            blocks = teacher.transformer_layers
            fit.embeddings(blocks[: kept[0]])
            for block, first, after in zip(
                student.transformer_layers, kept, [*kept[1:], depth]
            ):
                fit.block(block, blocks[first:after])
    report = ShrinkReport(
        states.tokens,
        tuple(kept),
        tuple(channels.tolist()),
        tuple(fit.state_r2),
        tuple(fit.logit_r2),
    )
    shrunk = student if model is teacher else task_around(student, model)
    return shrunk, report


def _supported(model):
    if not isinstance(model, FixedHeadTextEmbedder) and hasattr(
        model, "backbone"
    ):
        raise ValueError(
            "`model` must be a FixedHeadTextEmbedder or a FixedHeadBackbone, "
            "as `from_preset` of either loads any preset. "
            f"Received: a {type(model).__name__}, whose head has its own size"
        )
    backbone = backbone_of(model)
    if backbone.pooler or getattr(model, "projection", None) is not None:
        raise ValueError(
            "`model` must be without a pooler and without a projection, which "
            f"would read other states. Received: {model.name} with one"
        )
    refuse_changed_kernels(model)
    return backbone


def _choose_layers(model, states, num_layers, verbose):
    """Numbers of the layers to keep: drops those that change outputs least.

    One by one, by the mean cosine of the embeddings or of the tokens' vectors.
    """
    backbone = backbone_of(model)
    layers = list(range(backbone.num_layers))
    if num_layers == len(layers):
        return layers
    compared = []
    few = itertools.islice(states.each(), _COMPARED_BATCHES)
    for _, inputs, packing in few:
        x = backbone.embeddings_layer_norm(
            backbone.sum_packed_embeddings(inputs, packing)
        )
        compared.append((x, inputs, packing))

    def outputs(layers):
        for x, inputs, packing in compared:
            for layer in layers:
                block = backbone.transformer_layers[layer]
                x = block(x, packing=packing, use_causal_mask=backbone.causal)
            if isinstance(model, FixedHeadTextEmbedder):
                mask = inputs["padding_mask"]
                x = pool(packing.pad(x), mask, model.pooling_mode)
            yield to_numpy(ops.normalize(x, axis=-1), "float64")

    expected = list(outputs(layers))

    def similarity(layers):
        return sum(
            (found * wanted).sum()
            for found, wanted in zip(outputs(layers), expected)
        )

    trials = sum(range(num_layers + 1, len(layers) + 1))
    label = "Choosing layers" if verbose else None
    with progress(label, trials) as advance:
        while len(layers) > num_layers:
            scores = []
            for layer in layers:
                scores.append(similarity([x for x in layers if x != layer]))
                advance(1)
            del layers[int(np.argmax(scores))]
    return layers


def _choose_channels(teacher, states, count):
    """Channels `[C]`, ascending, of the largest variance of all states."""
    total = squares = 0.0
    for _, inputs, _ in states.each():
        x, _ = teacher.encode_packed_states(inputs)
        x = np.stack([to_numpy(state, "float64") for state in x])  # [S, P, D]
        total = total + x.sum(1)
        squares = squares + np.square(x).sum(1)
    variances = squares / states.tokens - np.square(total / states.tokens)
    variances[-1] *= _LAST_STATE_WEIGHT
    scores = variances.sum(0)
    if not np.isfinite(scores).all():
        raise ValueError(
            "`model` must have finite states. Received: a model whose states "
            "are infinite or NaN on the texts of `batches`"
        )
    return np.sort(np.argsort(-scores, kind="stable")[:count])
