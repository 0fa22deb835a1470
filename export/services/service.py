"""What every kind of served model has: signatures and warm-up.

Shape letters: B batch, T padded length.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from keras import ops

import keras_fixedhead
from export.files import golden, warmup

TOKEN_IDS_SIGNATURE = "from_token_ids"
_INPUTS = ("token_ids", "padding_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class TextSignature:
    """A signature whose every input is texts, string `[B]`.

    Attributes:
        golden: the texts that the gate asks, as many for each input.
        answer: function of a string tensor `[B]` per input to
            `{output: tensor [B, ...]}`, in TensorFlow, on real tokens.
        padded: function of a list of str per input to the Keras model's
            `Answers`.
    """

    golden: Mapping[str, Sequence[str]]
    answer: Callable
    padded: Callable


class Answers(typing.NamedTuple):
    """What the padded Keras model answers, arrays `[B, ...]`; strings are str.

    `margin`, float `[B]`, is how far the chosen answer is above the next best;
    None for a model that chooses nothing.
    """

    outputs: dict[str, np.ndarray]
    margin: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Service:
    """A model and its answers. A model's inputs are int32 `[B, T]`.

    Attributes:
        model: the Keras model whose weights are stored.
        preprocessor: the preprocessor of its kind.
        texts: the signatures of texts, `serving_default` among them.
        golden_ids: function that returns the inputs that the gate asks.
        packed: function of inputs to `{output: tensor [B, ...]}`, in
            TensorFlow, on real tokens.
        padded: function of inputs to the Keras model's `Answers`.
        tokenize: function of texts to inputs, as short as possible.
        described: what the card says of this kind, as JSON values.
        compared: like `padded`, the answers that show what a smaller dtype
            costs; None for `padded` itself.
    """

    model: keras.Model
    preprocessor: keras.layers.Layer
    texts: dict[str, TextSignature]
    golden_ids: Callable
    packed: Callable
    padded: Callable
    tokenize: Callable
    described: dict
    compared: Callable | None = None

    @property
    def backbone(self) -> keras_fixedhead.FixedHeadBackbone:
        return getattr(self.model, "backbone", self.model)

    @property
    def dtype(self) -> str:
        """What the model computes in: a float type, or int8."""
        if any(weight.dtype == "int8" for weight in self.model.weights):
            return "int8"
        return self.backbone.compute_dtype


def as_int32(inputs: Mapping) -> dict[str, np.ndarray]:
    """Converts a preprocessor's tensors to the arrays of a request."""
    return {
        name: ops.convert_to_numpy(ids).astype("int32")
        for name, ids in inputs.items()
    }


def as_float32(outputs: Mapping) -> dict[str, np.ndarray]:
    """Converts a Keras model's tensors to the arrays of an answer."""
    return {
        name: ops.convert_to_numpy(ops.cast(x, "float32"))
        for name, x in outputs.items()
    }


def _signature(specs, checks, answer):
    """Returns a function of tensors of one shape; `checks` returns what else
    to assert of them."""
    names = ", ".join(spec.name for spec in specs)

    @tf.function(input_signature=specs, autograph=False)
    def checked(*tensors):
        # At run time nothing else checks the rank, and a scalar crashes the
        # tokenizer's op.
        tensors = [
            tf.ensure_shape(x, spec.shape) for x, spec in zip(tensors, specs)
        ]
        shapes = tf.stack([tf.shape(x) for x in tensors])
        asserted = tf.debugging.Assert(
            tf.reduce_all(shapes == shapes[0]),
            [f"{names} must have the same shape."],
        )
        with tf.control_dependencies([asserted, *checks(*tensors)]):
            outputs = answer(*(tf.identity(x) for x in tensors))
            # REST carries no half precision.
            return {
                name: tf.cast(x, tf.float32) if x.dtype.is_floating else x
                for name, x in outputs.items()
            }

    return checked


def signatures(service: Service) -> dict[str, Callable]:
    """Builds the served functions: those of texts, string `[B]`, and
    `from_token_ids`, of the model's inputs, int32 `[B, T]`.

    Each returns `{output: tensor [B, ...]}`, float32, int32 or string.
    """
    backbone = service.backbone

    def in_table(ids, size, name):
        # On a GPU a lookup outside a table gives zeros, not an error.
        return tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"{name} must be from 0 to {size - 1}."],
        )

    def check_ids(token_ids, padding_mask, segment_ids):
        longest = backbone.max_sequence_length
        return [
            tf.debugging.Assert(
                tf.shape(token_ids)[1] <= longest,
                [f"A row must have at most {longest} ids."],
            ),
            in_table(token_ids, backbone.vocabulary_size, "token_ids"),
            in_table(padding_mask, 2, "padding_mask"),
            in_table(segment_ids, backbone.num_segments, "segment_ids"),
        ]

    served = {
        name: _signature(
            [tf.TensorSpec([None], tf.string, n) for n in signature.golden],
            lambda *texts: [],
            signature.answer,
        )
        for name, signature in service.texts.items()
    }
    served[TOKEN_IDS_SIGNATURE] = _signature(
        [tf.TensorSpec([None, None], tf.int32, name) for name in _INPUTS],
        check_ids,
        lambda *ids: service.packed(dict(zip(_INPUTS, ids))),
    )
    return served


def warmup_requests(
    service: Service, texts: Sequence[str], batch_sizes: Iterable[int]
) -> list[Message]:
    """Builds a `PredictRequest` per signature and batch of texts, which are as
    long as real traffic. A signature of several texts gets equal ones."""

    def tokenize(batch):
        inputs = service.tokenize(batch)
        return {name: np.asarray(ids) for name, ids in inputs.items()}

    requests = []
    for batch, inputs in warmup.batches(texts, batch_sizes, tokenize):
        text = np.array([text.encode() for text in batch], object)
        for name, signature in service.texts.items():
            texts_of = dict.fromkeys(signature.golden, text)
            requests.append(warmup.request(name, texts_of))
        requests.append(warmup.request(TOKEN_IDS_SIGNATURE, inputs))
    return requests


def least_cosine(service: Service, reference: Service) -> float:
    """Returns the cosine between the two models' answers to the golden token
    ids, for the text and output where it is least. Ignores strings."""
    inputs = service.golden_ids()
    outputs, expected = (
        (served.compared or served.padded)(inputs).outputs
        for served in (service, reference)
    )
    least = 1.0
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        # The value at padding would outweigh all others.
        rows, wanted = (
            np.where(x == golden.PADDING, 0, x).reshape(len(x), -1)
            for x in (array, expected[name])
        )
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
        least = min(least, float(((rows * wanted).sum(axis=1) / lengths).min()))
    return least
