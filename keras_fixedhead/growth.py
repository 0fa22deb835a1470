"""Trained models made larger, with equal outputs, or shallower.

Shape letters: B batch, T sequence length, D embedding size, N heads, H head
size, W total width of all heads.

A model trained with small heads has a low-rank bottleneck that its weights
cannot leave (Bhojanapalli et al. 2020, Theorem 1). Here its weights become
part of a larger model that computes the same (as in Chen et al. 2016,
"Net2Net", https://arxiv.org/abs/1511.05641) and can be trained further.
"""

import dataclasses
import numbers

import numpy as np
from keras import ops

from keras_fixedhead.attention_growth import grow_attention, to_numpy
from keras_fixedhead.backbone import backbone_of, input_batches
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder


def grow_head_size(model, head_size, seed=0):
    """A model with larger heads and the same outputs.

    The logits of a larger head are divided by the root of a larger number,
    so a head's queries are multiplied by `sqrt(new size / old size)`; where
    the model has an `attention_scale`, they stay as they are. A head's new
    query columns and the new rows of `attention_output` are zero, its new key
    and value columns random.

    In training, the first step changes of what is new the query columns and
    the rows of `attention_output`; key and value columns have gradients from
    the second step.

    Args:
        model: a `FixedHeadBackbone`, or a task that holds one.
        head_size: int, or a sequence of one int per layer. No layer's may be
            smaller than it is, one at least is larger.
        seed: int. Seed of the random columns.

    Returns:
        A new model of the same class, not trained yet: an optimizer's state
        is not copied. The layers are trainable where those of `model` are.

    Raises:
        ValueError: if `head_size` does not fit, or `model` holds no
            `FixedHeadBackbone`, is quantized or has LoRA enabled.
    """
    backbone = backbone_of(model)
    present = [
        max(layer.attention.head_sizes) for layer in backbone.transformer_layers
    ]
    several = isinstance(head_size, (list, tuple))
    sizes = list(head_size) if several else [head_size] * len(present)
    if (
        len(sizes) != len(present)
        or not all(map(_is_integer, sizes))
        or any(new < old for new, old in zip(sizes, present))
        or sizes == present
    ):
        raise ValueError(
            "`head_size` must be an integer, or one for each of the "
            f"{len(present)} layers, none smaller than now ({present}) and "
            "one at least larger; smaller heads would not compute the same. "
            f"Received: head_size={head_size!r}"
        )
    sizes = [int(size) for size in sizes]
    return _rebuild(model, seed=seed, head_size=sizes if several else sizes[0])


def grow_heads(model, num_heads, seed=0):
    """A model with more heads in every layer and the same outputs.

    The new heads have random queries, keys and values; their rows of
    `attention_output` are zero.

    In training, the first step changes of what is new those rows alone; the
    rest of the new heads has gradients from the second step.

    Args:
        model: a `FixedHeadBackbone`, or a task that holds one.
        num_heads: int. The number of heads of each layer, more than now.
        seed: int. Seed of the new heads.

    Returns:
        A new model, as of `grow_head_size`.

    Raises:
        ValueError: if `num_heads` is not an integer above the present one, or
            `model` holds no `FixedHeadBackbone`, is quantized or has LoRA
            enabled.
    """
    num_heads = _more("num_heads", num_heads, backbone_of(model).num_heads)
    return _rebuild(model, seed=seed, num_heads=num_heads)


def grow_positions(model, max_sequence_length):
    """A model for longer sequences, with the same outputs for shorter ones.

    Row `i` of the new table of positions is row `i % old length` of the old
    one, a start from which longer sequences are to be trained. Heads keep
    their size, also where it was the maximum sequence length. A preprocessor
    keeps its `sequence_length`; set it on that of the new model.

    Args:
        model: a `FixedHeadBackbone`, or a task that holds one.
        max_sequence_length: int, more than now.

    Returns:
        A new model, as of `grow_head_size`.

    Raises:
        ValueError: if `max_sequence_length` is not an integer above the
            present one, or `model` holds no `FixedHeadBackbone`, is quantized
            or has LoRA enabled.
    """
    backbone = backbone_of(model)
    present = backbone.max_sequence_length
    head_size = backbone.get_config()["head_size"]
    return _rebuild(
        model,
        max_sequence_length=_more(
            "max_sequence_length", max_sequence_length, present
        ),
        head_size=present if head_size is None else head_size,
    )


def drop_layers(model, layers):
    """A model without some of its Transformer blocks.

    It does not compute the same: see `output_change` for by how much, and
    train it further. The blocks that are left are numbered anew.

    Args:
        model: a `FixedHeadBackbone`, or a task that holds one.
        layers: sequence of int. The blocks to leave out, from 0.

    Returns:
        A new model, as of `grow_head_size`.

    Raises:
        ValueError: if `layers` names no block, one twice, one that is not
            there, or all, or `model` holds no `FixedHeadBackbone`, is
            quantized or has LoRA enabled.

    Source: Sajjad et al. 2020, https://arxiv.org/abs/2004.03844.
    """
    backbone = backbone_of(model)
    there = range(backbone.num_layers)
    layers = list(layers)
    if (
        not all(_is_integer(layer) and layer in there for layer in layers)
        or len(set(layers)) != len(layers)
        or not 0 < len(layers) < len(there)
    ):
        raise ValueError(
            "`layers` must name some of the model's layers, from 0 to "
            f"{there[-1]}, each once, and leave one at least. "
            f"Received: layers={layers!r}"
        )
    kept = [layer for layer in there if layer not in layers]
    head_size = backbone.get_config()["head_size"]
    if isinstance(head_size, list):
        head_size = [head_size[layer] for layer in kept]
    return _rebuild(
        model, left_out=layers, num_layers=len(kept), head_size=head_size
    )


@dataclasses.dataclass(frozen=True)
class OutputChange:
    """By how much the outputs of two models differ.

    Attributes:
        largest_difference: float. The largest absolute difference of two
            numbers.
        mean_cosine: float. The mean cosine similarity of two vectors.
    """

    largest_difference: float
    mean_cosine: float


def output_change(before, after, inputs, batch_size=32):
    """By how much the outputs of two models differ, padding left out.

    Of two `FixedHeadTextEmbedder` the embeddings of rows with a real token
    are compared, of other models the backbone's vectors of real tokens; the
    head of a `FixedHeadMaskedLM` is not looked at.

    Args:
        before: a `FixedHeadBackbone`, or a task that holds one.
        after: a model of the same class.
        inputs: the backbone's inputs, a dictionary of int arrays `[B, T]`.
        batch_size: int. How many rows are computed at once.

    Returns:
        An `OutputChange`.

    Raises:
        ValueError: if the models are of two classes or their vectors of two
            sizes, or `inputs` lacks one or has no real token.
    """
    if type(before) is not type(after):
        raise ValueError(
            "`before` and `after` must be of one class. Received: "
            f"{type(before).__name__} and {type(after).__name__}"
        )
    differences, cosines = [], []
    for batch, real in input_batches(inputs, batch_size):
        if not real.any():
            continue
        old, new = (_vectors(model, batch, real) for model in (before, after))
        if old.shape != new.shape:
            raise ValueError(
                "`before` and `after` must have vectors of one size. "
                f"Received: {old.shape[-1]} and {new.shape[-1]}"
            )
        differences.append(abs(new - old).max())
        lengths = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
        products = (old * new).sum(-1)
        cosines.extend(products / np.maximum(lengths, np.finfo(float).tiny))
    return OutputChange(float(max(differences)), float(np.mean(cosines)))


def _vectors(model, batch, real):
    """Embeddings `[rows with a token, D]`, or vectors `[real tokens, D]`."""
    if isinstance(model, FixedHeadTextEmbedder):
        outputs, chosen = model(batch, training=False), real.any(1)
    else:
        outputs = backbone_of(model)(batch, training=False)["sequence_output"]
        chosen = real
    return ops.convert_to_numpy(outputs).astype("float64")[chosen]


def _rebuild(model, left_out=(), seed=0, **changes):
    """A copy of a model whose backbone has another configuration.

    Args:
        model: the model; it is not changed.
        left_out: the indices of the blocks that the copy has not.
        seed: int. Seed of what is new in the attention layers.
        **changes: the arguments of the backbone that are not the same.

    Returns:
        The copy, with all weights of `model` or what has become of them.
    """
    _refuse_unlike_kernels(model)
    before = backbone_of(model)
    after = type(before).from_config({**before.get_config(), **changes})
    rebuilt = after if model is before else _task_around(after, model)

    dropped = [before.transformer_layers[i] for i in left_out]
    skipped = {
        id(layer) for block in dropped for layer in block._flatten_layers()
    } | {id(weight) for block in dropped for weight in block.weights}

    def kept(things):
        return [thing for thing in things if id(thing) not in skipped]

    # The public setter would set what is below, too: a task's head holds the
    # backbone's embedding.
    for old, new in zip(
        kept(model._flatten_layers()), rebuilt._flatten_layers(), strict=True
    ):
        new._trainable = old._trainable

    attentions = [
        (old.attention, new.attention)
        for old, new in zip(
            kept(before.transformer_layers), after.transformer_layers
        )
        if old.attention.head_sizes != new.attention.head_sizes
    ]
    table = before.position_embedding.position_embeddings
    reshaped = {id(table)} | {
        id(weight) for old, _ in attentions for weight in old.weights
    }
    for old, new in zip(kept(model.weights), rebuilt.weights, strict=True):
        new.trainable = old.trainable
        if id(old) not in reshaped:
            new.assign(to_numpy(old))
    after.position_embedding.position_embeddings.assign(
        # repeats the rows
        np.resize(
            to_numpy(table), (after.max_sequence_length, after.hidden_dim)
        )
    )
    rng = np.random.default_rng(seed)
    for old, new in attentions:
        grow_attention(old, new, rng)
    return rebuilt


def _task_around(backbone, model):
    """A task like `model`, with random weights around another backbone."""
    config = {**model.get_config(), "backbone": backbone}
    preprocessor = model.preprocessor
    if preprocessor is not None:
        # A vocabulary is a file of the tokenizer's, not in its config.
        config["preprocessor"] = type(preprocessor).from_config(
            {**preprocessor.get_config(), "tokenizer": preprocessor.tokenizer}
        )
    return type(model).from_config(config)


def _refuse_unlike_kernels(model):
    for layer in model._flatten_layers():
        if layer.quantization_mode is not None:
            raise ValueError(
                "A quantized model's kernels cannot be copied. Change the "
                "float model and quantize that. "
                f"Received: {layer.path} in {layer.quantization_mode}"
            )
        if getattr(layer, "lora_enabled", False):
            raise ValueError(
                "LoRA is not part of the kernels that are copied. Save the "
                "model with `save_to_preset`, which merges it, and change "
                "what `from_preset` returns. "
                f"Received: {layer.path} with LoRA"
            )


def _more(name, value, present):
    if not _is_integer(value) or value <= present:
        raise ValueError(
            f"`{name}` must be an integer above the present {present}. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def _is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
