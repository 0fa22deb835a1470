"""The encoder that a run trains: of a new shape, or from a preset."""

import dataclasses
import pathlib

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from training.engine.configs import ModelConfig, StartConfig
from training.engine.preset import read_embedder


def make_encoder(
    model: ModelConfig, vocabulary_size: int, **arguments
) -> FixedHeadBackbone:
    """Makes an encoder with random weights.

    Args:
        model: Its shape.
        vocabulary_size: The number of token ids.
        **arguments: Further arguments of `FixedHeadBackbone`.
    """
    return FixedHeadBackbone(
        vocabulary_size=vocabulary_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        intermediate_dim=model.intermediate_dim,
        head_size=model.head_size,
        dropout=model.dropout,
        max_sequence_length=model.max_sequence_length,
        dtype=model.dtype,
        **arguments,
    )


SHAPE = (
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "head_size",
    "max_sequence_length",
)


def read_start(
    model: StartConfig,
) -> tuple[FixedHeadTextEmbedder | None, StartConfig]:
    """Reads the preset that a run starts from, if it has one.

    Args:
        model: What is given of the shape.

    Returns:
        The preset, of whatever task, as an embedder, or `None`; and the whole
        shape.

    Raises:
        ValueError: `init` is no preset with a tokenizer, or a shape that is
            given is not its own; or without `init` the shape is not whole.
    """
    if model.init is None:
        missing = [
            name
            for name in SHAPE
            if name != "head_size" and getattr(model, name) is None
        ]
        if missing:
            raise ValueError(
                "`init` must be a preset to start from, or the shape must be "
                f"given. Received: init=None, without {', '.join(missing)}"
            )
        return None, model
    start = read_embedder(model.init, "init")
    theirs = {name: getattr(start.backbone, name) for name in SHAPE}
    refuse_differences(
        model.init,
        {
            name: (theirs[name], getattr(model, name))
            for name in SHAPE
            if getattr(model, name) is not None
        },
    )
    return start, dataclasses.replace(model, **theirs)


def refuse_differences(init, values):
    """Raises a `ValueError` where a preset is not what a run says.

    Args:
        init: The preset's folder.
        values: `{name: (what the preset has, what the run says)}`.
    """
    different = [
        f"{name} (there {theirs!r}, now {ours!r})"
        for name, (theirs, ours) in sorted(values.items())
        if theirs != ours
    ]
    if different:
        raise ValueError(
            f"`init` {str(init)!r} must be as the run says. "
            f"Different: {', '.join(different)}"
        )


def check_vocabulary(
    vocabulary: pathlib.Path | None, init: pathlib.Path | None
):
    """Raises a `ValueError` unless a run has one of the two alone."""
    if (init is None) != (vocabulary is not None):
        raise ValueError(
            "`vocabulary` must be a file where there is no init, and none "
            "where there is one, whose vocabulary is used. "
            f"Received: vocabulary={vocabulary}, init={init}"
        )


def read_tokenizer(
    start: FixedHeadTextEmbedder | None,
    vocabulary: pathlib.Path,
    lowercase: bool | None,
) -> FixedHeadTokenizer:
    """The tokenizer of a run: that of its start, or of a vocabulary.

    Args:
        start: What the run starts from, if from anything.
        vocabulary: File with a token a line; not read where there is a start.
        lowercase: Whether to lower-case; `None` takes what the start does,
            else yes.

    Raises:
        OSError: There is no such file.
        ValueError: The start does the other, or a special token is missing.
    """
    if start is None:
        text = vocabulary.read_text(encoding="utf-8")
        return FixedHeadTokenizer(
            # Not splitlines(), which splits at more than line feeds.
            text.removesuffix("\n").split("\n"),
            lowercase=lowercase is not False,
        )
    tokenizer = start.preprocessor.tokenizer
    if lowercase not in (None, tokenizer.lowercase):
        raise ValueError(
            f"`lowercase` must be as in init, {tokenizer.lowercase}. "
            f"Received: {lowercase}"
        )
    return tokenizer


def copy_encoder(
    backbone: FixedHeadBackbone, model: ModelConfig, pooler: bool = False
) -> FixedHeadBackbone:
    """Makes an encoder with the weights of another.

    Args:
        backbone: The other.
        model: Its dropout and dtype are the new one's.
        pooler: Whether the new one has the other's pooler. What is not used
            has no gradient.
    """
    config = backbone.get_config()
    del config["name"]
    config.update(dropout=model.dropout, dtype=model.dtype, pooler=pooler)
    copy = FixedHeadBackbone(**config)
    for layer in copy.layers:
        if layer.weights:
            layer.set_weights(backbone.get_layer(layer.name).get_weights())
    return copy
