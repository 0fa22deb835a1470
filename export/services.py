"""What a model answers when it is served, one function per kind of model.

The graph computes on real tokens alone; beside it stands the plain, padded
Keras model, whose answers the gate compares it with.

Shape letters: B batch, T padded length, D embedding size.
"""

import dataclasses
import functools
import typing

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden, warmup

TOKEN_IDS_SIGNATURE = "from_token_ids"
_INPUTS = ("token_ids", "padding_mask", "segment_ids")


@dataclasses.dataclass(frozen=True)
class Service:
    """A model and its answers.

    Attributes:
        model: the Keras model whose weights are stored.
        backbone: its `FixedHeadBackbone`.
        preprocessor: a `FixedHeadTextEmbedderPreprocessor`.
        packed: function of the model's inputs, int32 `[B, T]`, to
            `{output: tensor [B, ...]}`, in TensorFlow, on real tokens.
        padded: the same by calling the Keras model.
        echoed: names of the inputs that text signatures answer too, since
            their clients cannot know them.
        embedding_dim: int, the last axis of the first output.
    """

    model: keras.Model
    backbone: keras_fixedhead.FixedHeadBackbone
    preprocessor: keras_fixedhead.FixedHeadTextEmbedderPreprocessor
    packed: typing.Callable
    padded: typing.Callable
    embedding_dim: int
    echoed: tuple[str, ...] = ()


def _embedder(embedder, preprocessor):
    """Serves `embedding`, float32 `[B, D]`."""
    size = embedder.embedding_dim or embedder.backbone.hidden_dim

    def packed(inputs):
        embedding = embedder.embed_packed(inputs)
        return {"embedding": tf.ensure_shape(embedding, [None, size])}

    return Service(
        model=embedder,
        backbone=embedder.backbone,
        preprocessor=preprocessor,
        packed=packed,
        padded=lambda inputs: {"embedding": embedder(inputs)},
        embedding_dim=size,
    )


def _encoder(backbone, preprocessor):
    """Serves `sequence_output`, float32 `[B, T, D]`, zero at padding, and
    `pooled_output` `[B, D]` of a model with a pooler."""
    size = backbone.hidden_dim

    def packed(inputs):
        x, packing = backbone.encode_packed(inputs)
        x = packing.pad(x)
        outputs = {"sequence_output": tf.ensure_shape(x, [None, None, size])}
        if backbone.pooler:
            # Not x[:, 0], which an empty batch of length 0 has not.
            first = ops.sum(x[:, :1], axis=1)
            outputs["pooled_output"] = backbone.pooled_dense(first)
        return outputs

    def padded(inputs):
        outputs = backbone(inputs)
        x = outputs["sequence_output"]
        mask = ops.cast(inputs["padding_mask"], x.dtype)
        return {**outputs, "sequence_output": x * mask[:, :, None]}

    return Service(
        model=backbone,
        backbone=backbone,
        preprocessor=preprocessor,
        packed=packed,
        padded=padded,
        embedding_dim=size,
        echoed=("token_ids", "padding_mask"),
    )


SERVICES = {
    keras_fixedhead.FixedHeadTextEmbedder: _embedder,
    keras_fixedhead.FixedHeadBackbone: _encoder,
}


def of(model, preprocessor):
    """Returns the `Service` of a model.

    Args:
        model: an instance of one of `SERVICES`.
        preprocessor: a `FixedHeadTextEmbedderPreprocessor`.
    """
    return SERVICES[type(model)](model, preprocessor)


def _as_float32(outputs):
    """Half precision is nothing that REST carries."""
    return {
        name: tf.cast(x, tf.float32) if x.dtype.is_floating else x
        for name, x in outputs.items()
    }


def _from_text(service, prompt):
    """Returns the function of `text`, string `[B]`."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def answer(text):
        # The signature's shape is not checked at run time, and a scalar
        # crashes the tokenizer's op.
        text = tf.ensure_shape(text, [None])
        inputs = service.preprocessor.pad_to_longest(text, prompt=prompt)
        echoed = {name: inputs[name] for name in service.echoed}
        return _as_float32({**service.packed(inputs), **echoed})

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
        ]
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
                in_table(segment_ids, backbone.num_segments, "segment_ids"),
            ]
        ):
            return _as_float32(service.packed(inputs))

    return answer


def text_signatures(service):
    """Returns `{signature: prompt}`, the default one's prompt being None."""
    prompts = {name: name for name in service.preprocessor.prompts}
    return {session.DEFAULT_SIGNATURE: None, **prompts}


def signatures(service):
    """Builds the functions that are served.

    Args:
        service: a `Service`.

    Returns:
        `{name: tf.function}`: `serving_default` and one per prompt, of
        `text`, string `[B]`; `from_token_ids`, of the model's inputs, int32
        `[B, T]`. Each returns `{output: tensor [B, ...]}`, float32 or int32.
    """
    served = {
        name: _from_text(service, prompt)
        for name, prompt in text_signatures(service).items()
    }
    return {**served, TOKEN_IDS_SIGNATURE: _from_token_ids(service)}


def padded_answers(service, prompt=None):
    """Answers the golden texts with the plain, padded Keras model.

    Returns:
        The model's inputs, int32 `[B, T]`, and its outputs, as NumPy arrays.
    """
    prefix = service.preprocessor.prompt(prompt)
    inputs = service.preprocessor([prefix + text for text in golden.TEXTS])
    inputs = {
        name: ops.convert_to_numpy(ids).astype("int32")
        for name, ids in inputs.items()
    }
    outputs = {
        name: ops.convert_to_numpy(ops.cast(x, "float32"))
        for name, x in service.padded(inputs).items()
    }
    return inputs, outputs


def golden_cases(service):
    """Returns `{signature: (inputs, outputs)}` for those of `signatures`."""
    answers = functools.cache(functools.partial(padded_answers, service))
    texts = {"text": np.array(golden.TEXTS)}
    cases = {}
    for name, prompt in text_signatures(service).items():
        inputs, outputs = answers(prompt)
        echoed = {echo: inputs[echo] for echo in service.echoed}
        cases[name] = texts, {**outputs, **echoed}
    return {**cases, TOKEN_IDS_SIGNATURE: answers(None)}


def warmup_requests(service, texts, batch_sizes):
    """Builds the warm-up of every signature.

    Args:
        service: a `Service`.
        texts: list of str, as long as those of real traffic.
        batch_sizes: list of int.

    Returns:
        A list of `PredictRequest`.
    """

    def tokenize(batch):
        inputs = service.preprocessor.pad_to_longest(batch)
        return {name: ids.numpy() for name, ids in inputs.items()}

    requests = []
    for batch, inputs in warmup.batches(texts, batch_sizes, tokenize):
        text = np.array([text.encode() for text in batch], object)
        for signature in text_signatures(service):
            requests.append(warmup.request(signature, {"text": text}))
        requests.append(warmup.request(TOKEN_IDS_SIGNATURE, inputs))
    return requests


def least_cosine(service, reference):
    """Compares two models' answers to the golden texts.

    Returns:
        float, the cosine of the answer that is least like the reference's,
        over all texts and outputs.
    """
    outputs = padded_answers(service)[1]
    expected = padded_answers(reference)[1]
    least = 1.0
    for name, array in outputs.items():
        rows = array.reshape(len(array), -1)
        wanted = expected[name].reshape(len(array), -1)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
        least = min(least, float(((rows * wanted).sum(axis=1) / lengths).min()))
    return least
