"""An encoder without a task, served.

Shape letters: B batch, T padded length, D hidden size.
"""

import tensorflow as tf
from keras import ops

from export.files import golden
from export.services.service import (
    Answers,
    Service,
    as_float32,
    as_int32,
    text_signatures,
)


def serve(backbone, preprocessor):
    """Serves `sequence_output`, float32 `[B, T, D]`, zero at padding, and
    `pooled_output` `[B, D]` of a model with a pooler.

    Of `text`, string `[B]`, it answers `token_ids` and `padding_mask` too,
    int32 `[B, T]`.
    """
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
        outputs = {**outputs, "sequence_output": x * mask[:, :, None]}
        return Answers(as_float32(outputs))

    return Service(
        model=backbone,
        backbone=backbone,
        preprocessor=preprocessor,
        texts=text_signatures(
            packed, padded, preprocessor, ("token_ids", "padding_mask")
        ),
        golden_ids=lambda: as_int32(preprocessor(list(golden.TEXTS))),
        packed=packed,
        padded=padded,
        tokenize=preprocessor.pad_to_longest,
        described={"embedding_dim": size, "prompts": preprocessor.prompts},
        embedding_dim=size,
    )
