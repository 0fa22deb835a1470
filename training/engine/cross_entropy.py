"""The loss of a choice between classes, and whether it was right.

Shape letters: C classes.
"""

import tensorflow as tf


def losses_and_hits(logits, labels):
    """Loss in nats, and 1 where the highest logit is the label's.

    Args:
        logits: Float tensor `[..., C]`.
        labels: Integer tensor `[...]`.

    Returns:
        Two tensors `[...]`, float32 at least.
    """
    if logits.dtype != tf.float64:
        # A sum of exponentials needs more than bfloat16.
        logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
    return losses, tf.cast(hits, logits.dtype)
