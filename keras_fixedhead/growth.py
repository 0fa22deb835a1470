"""Trained models made larger, with equal outputs, or shallower.

Shape letters: B batch, T sequence length, D embedding size, H head size,
W total width of all heads.

The weights become part of a larger model that computes the same (as in Chen
et al. 2016, "Net2Net", https://arxiv.org/abs/1511.05641). Models are a
`FixedHeadBackbone` or a task that holds one, neither quantized nor with LoRA.
The functions return a new model, without an optimizer's state.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from keras_fixedhead.argument_checks import is_integer, positive_int
from keras_fixedhead.attention import FixedMultiHeadAttention
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import Tensor, kernel_initializer
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder


def grow_head_size(
    model: keras.Model, head_size: int | Sequence[int], seed: int = 0
) -> keras.Model:
    """A model with larger heads, all of one size or of one size per layer.

    The first training step changes those of the new weights that are zero
    only (see `grow_attention`); the random ones have gradients from the second.
    """
    backbone = backbone_of(model)
    present = [
        max(layer.attention.head_sizes) for layer in backbone.transformer_layers
    ]
    sizes = head_size
    if not isinstance(sizes, Sequence):
        sizes = [sizes] * len(present)
    if (
        len(sizes) != len(present)
        or not all(map(is_integer, sizes))
        or any(new < old for new, old in zip(sizes, present))
        or list(sizes) == present
    ):
        raise ValueError(
            "`head_size` must be an integer, or one for each layer, none "
            f"smaller than now ({present}) and at least one larger. "
            f"Received: head_size={head_size!r}"
        )
    return _rebuild(model, seed=seed, head_size=head_size)


def grow_heads(
    model: keras.Model, num_heads: int, seed: int = 0
) -> keras.Model:
    """A model with `num_heads` heads in every layer; see `grow_head_size`."""
    present = backbone_of(model).num_heads
    num_heads = positive_int("num_heads", num_heads, least=present + 1)
    return _rebuild(model, seed=seed, num_heads=num_heads)


def grow_positions(model: keras.Model, max_sequence_length: int) -> keras.Model:
    """A model for longer sequences, with the same outputs for shorter ones.

    Row `i` of the new table of positions is row `i % old length` of the old
    one. Heads keep their size, and a preprocessor its `sequence_length`.
    """
    backbone = backbone_of(model)
    present = backbone.max_sequence_length
    return _rebuild(
        model,
        max_sequence_length=positive_int(
            "max_sequence_length", max_sequence_length, least=present + 1
        ),
        head_size=present if backbone.head_size is None else backbone.head_size,
    )


def drop_layers(model: keras.Model, layers: Sequence[int]) -> keras.Model:
    """A model without the Transformer blocks of the given numbers, from 0.

    Its outputs differ (see `output_change`); train it further.
    Source: Sajjad et al. 2020, https://arxiv.org/abs/2004.03844.
    """
    backbone = backbone_of(model)
    there = range(backbone.num_layers)
    layers = list(layers)
    kept = [layer for layer in there if layer not in layers]
    if not 0 < len(kept) == len(there) - len(layers) < len(there):
        raise ValueError(
            "`layers` must name some of the model's layers, from 0 to "
            f"{there[-1]}, each once, and leave at least one. "
            f"Received: layers={layers!r}"
        )
    return _rebuild(model, dropped=layers, **sizes_of(backbone, kept))


def sizes_of(backbone: FixedHeadBackbone, layers: Sequence[int]) -> dict:
    """The arguments of a backbone with only some of another's layers."""
    head_size = backbone.head_size
    if isinstance(head_size, Sequence):
        head_size = [head_size[layer] for layer in layers]
    return {"num_layers": len(layers), "head_size": head_size}


@dataclasses.dataclass(frozen=True)
class OutputChange:
    """The difference between the outputs of two models."""

    largest_difference: float  # of two numbers, absolute
    mean_cosine: float  # of two vectors


def output_change(
    before: keras.Model, after: keras.Model, inputs: dict, batch_size: int = 32
) -> OutputChange:
    """Compares the embeddings of two models, or the vectors of real tokens.

    `inputs` are the backbone's, int arrays `[B, T]`.
    """
    differences, cosines = [], []
    for batch, real in input_batches(inputs, batch_size):
        if not real.any():
            continue
        old, new = (_vectors(model, batch, real) for model in (before, after))
        differences.append(abs(new - old).max())
        lengths = np.linalg.norm(old, axis=-1) * np.linalg.norm(new, axis=-1)
        products = (old * new).sum(-1)
        cosines.extend(products / np.maximum(lengths, np.finfo(float).tiny))
    return OutputChange(float(max(differences)), float(np.mean(cosines)))


def _vectors(model, batch, real):
    if isinstance(model, FixedHeadTextEmbedder):
        outputs, chosen = model(batch, training=False), real.any(1)
    else:
        outputs = backbone_of(model)(batch, training=False)["sequence_output"]
        chosen = real
    return ops.convert_to_numpy(outputs).astype("float64")[chosen]


def backbone_of(model: keras.Model) -> FixedHeadBackbone:
    """The `FixedHeadBackbone` that a model is or, as a task, holds."""
    backbone = getattr(model, "backbone", model)
    if not isinstance(backbone, FixedHeadBackbone):
        raise ValueError(
            "`model` must be a FixedHeadBackbone or a task that holds one; "
            "keras_fixedhead.convert.from_bert_backbone converts a BERT. "
            f"Received: model={model!r}"
        )
    return backbone


def input_batches(
    inputs: dict, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yields a backbone's inputs in batches, and where tokens are real."""
    arrays = {
        name: ops.convert_to_numpy(inputs[name]).astype("int32")
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    for start in range(0, len(arrays["token_ids"]), batch_size):
        batch = {k: v[start : start + batch_size] for k, v in arrays.items()}
        yield batch, batch["padding_mask"] != 0


def refuse_changed_kernels(model: keras.Model) -> None:
    """Raises ValueError if a layer is quantized or has LoRA."""
    for layer in model._flatten_layers():
        if layer.quantization_mode or getattr(layer, "lora_enabled", False):
            raise ValueError(
                "The kernels of a quantized model or of one with LoRA cannot "
                "be copied. Quantize later, or merge LoRA with "
                f"`save_to_preset`. Received: {layer.path}"
            )


def _rebuild(model, dropped=(), seed=0, **changes):
    refuse_changed_kernels(model)
    before = backbone_of(model)
    after = type(before).from_config({**before.get_config(), **changes})
    rebuilt = after if model is before else task_around(after, model)

    blocks = [before.transformer_layers[i] for i in dropped]
    skipped = {
        id(thing)
        for block in blocks
        for thing in (*block._flatten_layers(), *block.weights)
    }

    def kept(things):
        return [thing for thing in things if id(thing) not in skipped]

    # The public setter would also change sublayers, and a task's head holds
    # the backbone's embedding.
    for old, new in zip(kept(_layers(model)), _layers(rebuilt), strict=True):
        new._trainable = old._trainable
    for old, new in zip(kept(model.weights), rebuilt.weights, strict=True):
        new.trainable = old.trainable
        # It repeats the rows of a table of positions that grew.
        new.assign(np.resize(to_numpy(old), new.shape))
    rng = np.random.default_rng(seed)
    for old, new in zip(
        kept(before.transformer_layers), after.transformer_layers
    ):
        if old.attention.head_sizes != new.attention.head_sizes:
            grow_attention(old.attention, new.attention, rng)
    return rebuilt


def _layers(model):
    """All layers but the preprocessor's, which it builds when it is called."""
    preprocessor = getattr(model, "preprocessor", None)
    others = set()
    if preprocessor is not None:
        others = {id(layer) for layer in preprocessor._flatten_layers()}
    layers = model._flatten_layers()
    return [layer for layer in layers if id(layer) not in others]


def grow_attention(
    before: FixedMultiHeadAttention,
    after: FixedMultiHeadAttention,
    rng: np.random.Generator,
) -> None:
    """Sets the weights of an attention layer so that it equals a smaller one.

    `logits = scale q k`, so a head's queries are multiplied by
    `old scale / new scale`. In old heads new query columns are zero, new key
    and value columns random; in new heads all three are random; new rows of
    `attention_output` are zero.
    """
    sizes, new_sizes = before.head_sizes, after.head_sizes
    starts = list(itertools.accumulate(new_sizes, initial=0))
    # The columns of `after` that hold those of `before`, [W].
    places = np.concatenate(
        [start + np.arange(size) for start, size in zip(starts, sizes)]
    )
    # Whether a new column belongs to a head of `before`, [W_new].
    of_old_heads = np.arange(starts[-1]) < starts[len(sizes)]
    new_scales = after.attention_scales[: len(sizes)]
    scale = np.repeat(np.divide(before.attention_scales, new_scales), sizes)
    for name in ("query", "key", "value"):
        old, new = getattr(before, name), getattr(after, name)
        scaled = scale if name == "query" else 1.0
        random = kernel_initializer(int(rng.integers(2**31)))
        kernel = to_numpy(random(new.kernel.shape), "float64")
        if name == "query":
            kernel[:, of_old_heads] = 0.0
        kernel[:, places] = to_numpy(old.kernel, "float64") * scaled
        new.kernel.assign(kernel)
        if old.use_bias:
            bias = np.zeros(new.bias.shape)
            bias[places] = to_numpy(old.bias, "float64") * scaled
            new.bias.assign(bias)
    old, new = before.attention_output, after.attention_output
    kernel = np.zeros(new.kernel.shape)
    kernel[places] = to_numpy(old.kernel, "float64")
    new.kernel.assign(kernel)
    if old.use_bias:
        new.bias.assign(to_numpy(old.bias))


def to_numpy(weight: Tensor, dtype: str | None = None) -> np.ndarray:
    """A copy: JAX may give a training step the memory of its arguments."""
    return np.array(ops.convert_to_numpy(weight), dtype)


def task_around(backbone: FixedHeadBackbone, model: keras.Model) -> keras.Model:
    """A task like `model`, with new weights, around another backbone."""
    config = {**model.get_config(), "backbone": backbone}
    preprocessor = model.preprocessor
    if preprocessor is not None:
        # The vocabulary is a file of the tokenizer, not in its config.
        config["preprocessor"] = type(preprocessor).from_config(
            {**preprocessor.get_config(), "tokenizer": preprocessor.tokenizer}
        )
    return type(model).from_config(config)
