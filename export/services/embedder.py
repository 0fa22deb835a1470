"""A text embedder, served.

Shape letters: B batch, D embedding size.
"""

import tensorflow as tf

from export.files import golden
from export.services.service import (
    Answers,
    Service,
    as_float32,
    as_int32,
    text_signatures,
)


def serve(embedder, preprocessor):
    """Serves `embedding`, float32 `[B, D]`, of `text`, string `[B]`."""
    size = embedder.embedding_dim or embedder.backbone.hidden_dim

    def packed(inputs):
        embedding = embedder.embed_packed(inputs)
        return {"embedding": tf.ensure_shape(embedding, [None, size])}

    def padded(inputs):
        return Answers(as_float32({"embedding": embedder(inputs)}))

    return Service(
        model=embedder,
        backbone=embedder.backbone,
        preprocessor=preprocessor,
        texts=text_signatures(packed, padded, preprocessor),
        golden_ids=lambda: as_int32(preprocessor(list(golden.TEXTS))),
        packed=packed,
        padded=padded,
        tokenize=preprocessor.pad_to_longest,
        described={"embedding_dim": size, "prompts": preprocessor.prompts},
        embedding_dim=size,
    )
