"""What every kind of served model has: signatures and warm-up.

Shape letters: B batch, T padded length.
"""

import dataclasses
import typing

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.checks import tolerance
from export.files import golden, warmup

TOKEN_IDS_SIGNATURE = "from_token_ids"
_INPUTS = ("token_ids", "padding_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class TextSignature:
    """A signature whose every input is texts, string `[B]`.

    Attributes:
        golden: `{input: texts}`, what the gate asks, as many texts for each.
        answer: function of as many string tensors `[B]`, in this order, to
            `{output: tensor [B, ...]}`, in TensorFlow, on real tokens.
        padded: function of as many lists of str to an `Answers` by calling
            the Keras model.
    """

    golden: dict[str, tuple[str, ...]]
    answer: typing.Callable
    padded: typing.Callable


class Answers(typing.NamedTuple):
    """What the padded Keras model answers.

    Attributes:
        outputs: `{output: array [B, ...]}`; strings are arrays of str.
        margin: float array `[B]`, by how much what was chosen is above the
            next best; None of a model that chooses nothing.
    """

    outputs: dict[str, np.ndarray]
    margin: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Service:
    """A model and its answers.

    Attributes:
        model: the Keras model whose weights are stored.
        backbone: its `FixedHeadBackbone`.
        preprocessor: the preprocessor of its kind.
        texts: `{signature: TextSignature}`, `serving_default` among them.
        golden_ids: function of nothing to the model's inputs, int32 arrays
            `[B, T]`, that the gate asks.
        packed: function of the model's inputs, int32 `[B, T]`, to
            `{output: tensor [B, ...]}`, in TensorFlow, on real tokens.
        padded: function of the same to an `Answers` by calling the Keras
            model.
        tokenize: function of a list of B str to the model's inputs, int32
            tensors or arrays `[B, T]`, as short as they can be.
        described: JSON-able dictionary, what the card says of this kind.
        embedding_dim: int, the last axis of the first output; None of a
            model that embeds nothing.
        compared: function as `padded`, of what tells how far fewer bits are
            from float32; None for `padded` itself.
    """

    model: keras.Model
    backbone: keras_fixedhead.FixedHeadBackbone
    preprocessor: keras.layers.Layer
    texts: dict[str, TextSignature]
    golden_ids: typing.Callable
    packed: typing.Callable
    padded: typing.Callable
    tokenize: typing.Callable
    described: dict
    embedding_dim: int | None = None
    compared: typing.Callable | None = None

    @property
    def dtype(self):
        """What the model computes in: a float type, or int8."""
        if any(weight.dtype == "int8" for weight in self.model.weights):
            return "int8"
        return self.backbone.compute_dtype


def as_int32(inputs):
    """A preprocessor's tensors as the arrays that a server is sent."""
    return {
        name: ops.convert_to_numpy(ids).astype("int32")
        for name, ids in inputs.items()
    }


def as_float32(outputs):
    """A Keras model's tensors as the arrays that a server answers."""
    return {
        name: ops.convert_to_numpy(ops.cast(x, "float32"))
        for name, x in outputs.items()
    }


def _without_half_precision(outputs):
    """Half precision is nothing that REST carries."""
    return {
        name: tf.cast(x, tf.float32) if x.dtype.is_floating else x
        for name, x in outputs.items()
    }


def _from_texts(signature):
    """Returns the function of a `TextSignature`."""
    names = list(signature.golden)

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, n) for n in names],
        autograph=False,
    )
    def answer(*texts):
        # The signature's shape is not checked at run time, and a scalar
        # crashes the tokenizer's op.
        texts = [tf.ensure_shape(text, [None]) for text in texts]
        shapes = tf.stack([tf.shape(text) for text in texts])
        with tf.control_dependencies(
            [
                tf.debugging.Assert(
                    tf.reduce_all(shapes == shapes[0]),
                    [f"{' and '.join(names)} must hold as many texts each."],
                )
            ]
            if len(texts) > 1
            else []
        ):
            texts = [tf.identity(text) for text in texts]
            return _without_half_precision(signature.answer(*texts))

    return answer


def _from_token_ids(service):
    """Returns the function of the model's inputs, int32 `[B, T]`."""
    backbone = service.backbone

    def in_table(ids, size, name):
        # On a GPU a lookup outside a table gives zeros, not an error.
        return tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"{name} must be from 0 to {size - 1}."],
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name) for name in _INPUTS
        ],
        autograph=False,
    )
    def answer(token_ids, padding_mask, segment_ids):
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
                in_table(padding_mask, 2, "padding_mask"),
                in_table(segment_ids, backbone.num_segments, "segment_ids"),
            ]
        ):
            return _without_half_precision(service.packed(inputs))

    return answer


def signatures(service):
    """Builds the functions that are served.

    Args:
        service: a `Service`.

    Returns:
        `{name: tf.function}`: those of `service.texts`, of string `[B]` each;
        `from_token_ids`, of the model's inputs, int32 `[B, T]`. Each returns
        `{output: tensor [B, ...]}`, float32, int32 or string.
    """
    served = {
        name: _from_texts(signature)
        for name, signature in service.texts.items()
    }
    return {**served, TOKEN_IDS_SIGNATURE: _from_token_ids(service)}


def warmup_requests(service, texts, batch_sizes):
    """Builds the warm-up of every signature.

    Args:
        service: a `Service`.
        texts: list of str, as long as those of real traffic.
        batch_sizes: list of int.

    Returns:
        A list of `PredictRequest`. A signature of several texts has the same
        one in each place.
    """

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


def least_cosine(service, reference):
    """Compares two models' numbers for the golden token ids.

    Returns:
        float, the cosine of the answer that is least like the reference's,
        over all texts and outputs that are no strings.
    """
    inputs = service.golden_ids()
    outputs, expected = (
        (served.compared or served.padded)(inputs).outputs
        for served in (service, reference)
    )
    least = 1.0
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        # What stands at padding is no answer, and would outweigh them all.
        rows, wanted = (
            np.where(x == tolerance.PADDING, 0, x).reshape(len(x), -1)
            for x in (array, expected[name])
        )
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
        least = min(least, float(((rows * wanted).sum(axis=1) / lengths).min()))
    return least


def text_signatures(packed, padded, preprocessor, echoed=()):
    """The text signatures of a model of single texts, one for each prompt.

    Args:
        packed, padded: as of a `Service`.
        preprocessor: a `FixedHeadTextEmbedderPreprocessor`.
        echoed: names of the model's inputs that are answered too, since
            clients who send texts cannot know them.

    Returns:
        `{signature: TextSignature}`, the default one's prompt being none.
    """

    def of_prompt(prompt):
        prefix = preprocessor.prompt(prompt)

        def answer(text):
            inputs = preprocessor.pad_to_longest(text, prompt=prompt)
            return {**packed(inputs), **{name: inputs[name] for name in echoed}}

        def expected(texts):
            inputs = as_int32(preprocessor([prefix + text for text in texts]))
            answers = padded(golden.trimmed(inputs))
            return Answers(
                {**answers.outputs, **{name: inputs[name] for name in echoed}}
            )

        return TextSignature({"text": golden.TEXTS}, answer, expected)

    prompts = {name: name for name in preprocessor.prompts}
    return {
        name: of_prompt(prompt)
        for name, prompt in {session.DEFAULT_SIGNATURE: None, **prompts}.items()
    }
