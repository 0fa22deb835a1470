"""A text embedder or an encoder without a task, served.

Shape letters: B batch, T padded length, D embedding or hidden size.
"""

import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden
from export.services import service


@service.serves(keras_fixedhead.FixedHeadTextEmbedder)
def serve(
    embedder: keras_fixedhead.FixedHeadTextEmbedder,
    preprocessor: keras_fixedhead.FixedHeadTextEmbedderPreprocessor,
) -> service.Service:
    """Serves `embedding`, float32 `[B, D]`, of `text`, string `[B]`."""
    size = embedder.embedding_size

    def packed(inputs):
        embedding = embedder.embed_packed(inputs)
        return {"embedding": tf.ensure_shape(embedding, [None, size])}

    def padded(inputs):
        outputs = {"embedding": embedder(inputs)}
        return service.Answers(service.to_numpy(outputs))

    return _of_single_texts(embedder, preprocessor, size, packed, padded)


@service.serves(keras_fixedhead.FixedHeadBackbone)
def serve_backbone(
    backbone: keras_fixedhead.FixedHeadBackbone,
    preprocessor: keras_fixedhead.FixedHeadTextEmbedderPreprocessor,
) -> service.Service:
    """Serves `sequence_output`, float32 `[B, T, D]`, zero at padding, and
    `pooled_output` `[B, D]` of a model with a pooler.

    For `text`, string `[B]`, it answers `token_ids` and `padding_mask` too,
    int32 `[B, T]`.
    """
    size = backbone.hidden_dim

    def packed(inputs):
        x, packing = backbone.encode_packed(inputs)
        x = packing.pad(x)
        outputs = {"sequence_output": tf.ensure_shape(x, [None, None, size])}
        if backbone.pooler:
            # An empty batch of length 0 has no x[:, 0].
            first = ops.sum(x[:, :1], axis=1)
            outputs["pooled_output"] = backbone.pooled_dense(first)
        return outputs

    def padded(inputs):
        outputs = backbone(inputs)
        x = outputs["sequence_output"]
        mask = ops.cast(inputs["padding_mask"], x.dtype)
        outputs = {**outputs, "sequence_output": x * mask[:, :, None]}
        return service.Answers(service.to_numpy(outputs))

    echoed = ("token_ids", "padding_mask")  # which clients do not know
    return _of_single_texts(
        backbone, preprocessor, size, packed, padded, echoed
    )


def _of_single_texts(model, preprocessor, size, packed, padded, echoed=()):
    """Serves a signature without a prompt, and one for each prompt."""

    def of_prompt(prompt):
        prefix = preprocessor.prompt(prompt)

        def answer(text):
            inputs = preprocessor.pad_to_longest(text, prompt=prompt)
            return packed(inputs) | {name: inputs[name] for name in echoed}

        def expected(texts):
            inputs = preprocessor([prefix + text for text in texts])
            inputs = service.to_numpy(inputs)
            outputs = padded(golden.trimmed(inputs)).outputs
            echo = {name: inputs[name] for name in echoed}
            return service.Answers(outputs | echo)

        return service.TextSignature({"text": golden.TEXTS}, answer, expected)

    prompts = {prompt: of_prompt(prompt) for prompt in preprocessor.prompts}
    return service.Service(
        model=model,
        preprocessor=preprocessor,
        texts={session.DEFAULT_SIGNATURE: of_prompt(None), **prompts},
        golden_ids=lambda: service.to_numpy(preprocessor(list(golden.TEXTS))),
        packed=packed,
        padded=padded,
        tokenize=preprocessor.pad_to_longest,
        described={"embedding_dim": size, "prompts": preprocessor.prompts},
    )
