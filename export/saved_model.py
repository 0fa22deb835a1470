"""Exports a preset folder as a SavedModel that TensorFlow Serving takes.

`python -m export.saved_model --model PRESET --output DIR/NAME --version N`
writes DIR/NAME/N: text in, embedding out, the tokenizer in the graph.

Shape letters: B batch, T padded length, D embedding size.
"""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile

import keras
import numpy as np
import rich
import tensorflow as tf

import keras_fixedhead
from export import checks, cli, golden, session, verify, versions, warmup

_PACKAGES = ("keras", "keras-hub", "tensorflow", "tensorflow-text")


class Weights(tf.Module):
    """What the SavedModel stores: the variables, and nothing of Keras.

    With the Keras model as an attribute the C++ loader does not find its
    variables, and Keras's own export stores them twice.
    """

    def __init__(self, weights):
        super().__init__()
        self.weights = [weight.value for weight in weights]


def _from_text(embedder, prompt):
    """Returns a function of `text`, string `[B]`, to `embedding` `[B, D]`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def embed(text):
        # The signature's shape is not checked at run time, and a scalar
        # crashes the tokenizer's op.
        text = tf.ensure_shape(text, [None])
        inputs = embedder.preprocessor.pad_to_longest(text, prompt=prompt)
        embedding = embedder.embed_packed(inputs)
        return {"embedding": tf.cast(embedding, tf.float32)}

    return embed


def _from_token_ids(embedder):
    """Returns a function of ids, int32 `[B, T]`, to `embedding` `[B, D]`."""
    backbone = embedder.backbone

    def spec(name):
        return tf.TensorSpec([None, None], tf.int32, name)

    def in_table(ids, size, name):
        # On a GPU a lookup outside a table gives zeros, not an error.
        return tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"{name} must be from 0 to {size - 1}."],
        )

    @tf.function(
        input_signature=[
            spec("token_ids"),
            spec("padding_mask"),
            spec("segment_ids"),
        ]
    )
    def embed(token_ids, padding_mask, segment_ids):
        inputs = {
            "token_ids": tf.ensure_shape(token_ids, [None, None]),
            "padding_mask": tf.ensure_shape(padding_mask, [None, None]),
            "segment_ids": tf.ensure_shape(segment_ids, [None, None]),
        }
        shapes = tf.stack([tf.shape(ids) for ids in inputs.values()])
        longest = backbone.max_sequence_length
        with tf.control_dependencies(
            [
                tf.debugging.Assert(
                    tf.reduce_all(shapes == shapes[0]),
                    [f"{', '.join(inputs)} must have the same shape."],
                ),
                tf.debugging.Assert(
                    shapes[0, 1] <= longest,
                    [f"A row must have at most {longest} ids."],
                ),
                in_table(token_ids, backbone.vocabulary_size, "token_ids"),
                in_table(segment_ids, backbone.num_segments, "segment_ids"),
            ]
        ):
            embedding = embedder.embed_packed(inputs)
        return {"embedding": tf.cast(embedding, tf.float32)}

    return embed


def signatures(embedder):
    """Builds the functions that are served.

    Args:
        embedder: a `FixedHeadTextEmbedder` with a preprocessor.

    Returns:
        `{name: tf.function}`: `serving_default` and one per prompt, of
        `text`, string `[B]`; `from_token_ids`, of the model's inputs, int32
        `[B, T]`. Each returns `{"embedding": float32 [B, D]}`.
    """
    prompts = {session.DEFAULT_SIGNATURE: None}
    prompts |= {name: name for name in embedder.preprocessor.prompts}
    served = {
        name: _from_text(embedder, prompt) for name, prompt in prompts.items()
    }
    return {**served, "from_token_ids": _from_token_ids(embedder)}


def golden_cases(embedder):
    """Answers the golden texts with the plain, padded Keras model.

    Returns:
        `{signature: (inputs, outputs)}` for the names of `signatures`.
    """
    preprocessor = embedder.preprocessor

    def answer(prefix):
        inputs = preprocessor([prefix + text for text in golden.TEXTS])
        inputs = {
            name: keras.ops.convert_to_numpy(ids).astype("int32")
            for name, ids in inputs.items()
        }
        embedding = keras.ops.convert_to_numpy(embedder(inputs))
        return inputs, {"embedding": embedding}

    prefixes = {session.DEFAULT_SIGNATURE: "", **preprocessor.prompts}
    cases = {
        name: ({"text": np.array(golden.TEXTS)}, answer(prefix)[1])
        for name, prefix in prefixes.items()
    }
    return {**cases, "from_token_ids": answer("")}


def describe(embedder, model):
    """Returns the card: what was exported, from what, by which versions."""
    backbone, preprocessor = embedder.backbone, embedder.preprocessor
    tokens = preprocessor.tokenizer.get_vocabulary()
    vocabulary = "".join(f"{token}\n" for token in tokens)
    return {
        "model": type(embedder).__name__,
        "preset": pathlib.Path(model).resolve().name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(
            "T", "seconds"
        ),
        "embedding_dim": backbone.hidden_dim,
        "max_sequence_length": backbone.max_sequence_length,
        "sequence_length": preprocessor.sequence_length,
        "prompts": preprocessor.prompts,
        "parameters": embedder.count_params(),
        "parameter_bytes": sum(
            math.prod(w.shape) * w.value.dtype.size for w in embedder.weights
        ),
        "vocabulary_size": backbone.vocabulary_size,
        "vocabulary_sha256": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "versions": {
            name: importlib.metadata.version(name) for name in _PACKAGES
        },
    }


def write(folder, module, functions, cases, card):
    """Writes a SavedModel with all its extra files; checks nothing.

    Args:
        folder: path of the folder to fill.
        module: `tf.Module` whose variables the functions use.
        functions: `{signature: tf.function}`, see `signatures`.
        cases: golden requests and answers, see `golden_cases`.
        card: JSON-able dictionary, see `describe`.
    """
    tf.saved_model.save(module, str(folder), functions)
    golden.save(folder, cases)
    warmup.write(folder, warmup.requests(golden.load(folder)))
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (folder / checks.CARD_FILE).write_text(text, encoding="utf-8")


def export(model, output, version=None):
    """Writes, checks and publishes a version.

    The version appears under its number in one step, and only if every check
    of the gate passes: a model server that watches the folder never sees
    half of it.

    Args:
        model: path of a preset folder.
        output: path of the folder of versions, `DIR/NAME`.
        version: int, the number of the version; None for one above the
            highest there is.

    Returns:
        The results of the gate (`verify.Result`), and the path of the
        published folder or None if a check failed.

    Raises:
        ValueError: if the version exists, or the backend, the version or the
            preset will not do.
    """
    output = pathlib.Path(output)
    if version is None:
        version = 1 + max(versions.find(output), default=0)
    if version < 0:
        raise ValueError(f"`version` must not be negative, received {version}.")
    published = output / str(version)
    if published.exists():
        raise ValueError(
            f"`version` {version} exists in {output} and is never overwritten. "
            "Pass a higher number."
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`KERAS_BACKEND` must be tensorflow to export, received "
            f"{keras.backend.backend()}."
        )
    embedder = _load(model)
    published.parent.mkdir(parents=True, exist_ok=True)
    # Not a number, so a model server passes it by.
    staging = pathlib.Path(
        tempfile.mkdtemp(prefix=f".{version}-", dir=published.parent)
    )
    try:
        write(
            staging,
            Weights(embedder.weights),
            signatures(embedder),
            golden_cases(embedder),
            describe(embedder, model),
        )
        staging.chmod(0o755)  # mkdtemp's is for its owner alone
        results = verify.run_checks(staging)
        if not all(result.passed for result in results):
            return results, None
        os.rename(staging, published)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return results, published


def _load(model):
    """Loads a preset folder; `from_preset` would look for a name online."""
    if not (pathlib.Path(model) / "config.json").is_file():
        raise ValueError(
            f"`model` must be a preset folder, received {model}, which has no "
            "config.json. Training writes one, and `save_to_preset`."
        )
    embedder = keras_fixedhead.FixedHeadTextEmbedder.from_preset(str(model))
    if embedder.preprocessor is None:
        raise ValueError(
            f"`model` {model} has no preprocessor. Save it with one, so that "
            "its tokenizer can be exported with it."
        )
    return embedder


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Export a preset folder as a SavedModel for TensorFlow Serving.

    The version is checked by the gate (python -m export.verify) before it
    appears; exit status 1, and nothing published, if a check fails.
    """

    model: pathlib.Path
    """The preset folder, such as the one that training writes."""

    output: pathlib.Path
    """The folder of versions: what TF Serving calls the model base path."""

    version: int | None = None
    """The number of the version; an existing one is never overwritten. One
    above the highest there is, if not given."""


def main(arguments):
    """Exports and prints the gate's table; returns the exit status."""
    results, published = export(
        arguments.model, arguments.output, arguments.version
    )
    verify.print_table(results, published or arguments.output)
    if published is None:
        rich.print("[bold red]not published:[/] a check failed")
        return 1
    rich.print(f"published {published}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
