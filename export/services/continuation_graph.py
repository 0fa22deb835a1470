"""How a served language model continues texts: the most probable token, one
after the other.

TensorFlow's own operations alone: keys and values are kept in a cache, in a
loop that the model server runs without XLA.

Shape letters: B batch, L longest beginning, S longest sequence.
"""

import tensorflow as tf


def continue_greedily(
    model, token_ids, given, limits, end_token_id, vocabulary_size
):
    """Continues sequences, each as if it were alone.

    A step computes one place of all rows. Places where no row needs a token
    are passed over, so a short beginning beside a long one costs no more
    steps than both do one after the other.

    Args:
        model: a `FixedHeadCausalLM`.
        token_ids: int32 tensor `[B, L]`, the beginnings, L at least 1.
        given: int32 tensor `[B]`, how many tokens of each row are given, at
            least 1.
        limits: int32 tensor `[B]`, how many it is to have at most, no fewer
            than are given.
        end_token_id: int. A row ends with the first that is generated.
        vocabulary_size: int. Only ids below it are generated: of what a model
            has more than its tokenizer, there are no words.

    Returns:
        The sequences, int32 `[B, S]`, S the largest limit, and how many
        tokens of each are real, int32 `[B]`.
    """
    batch, width = tf.unstack(tf.shape(token_ids))
    # An empty batch has no largest one.
    size = tf.maximum(tf.reduce_max(limits), width)
    cache = tuple(
        tf.zeros(
            [batch, 2, size, sum(layer.attention.head_sizes)],
            layer.compute_dtype,
        )
        for layer in model.backbone.transformer_layers
    )
    _, _, cache = model.call_with_cache(token_ids, cache, 0)
    token_ids = tf.pad(token_ids, [[0, 0], [0, size - width]])
    places = tf.range(size)

    def unfinished(ended, counts):
        return ~ended & (counts < limits)

    def more(token_ids, counts, ended, cache):
        return tf.reduce_any(unfinished(ended, counts))

    def step(token_ids, counts, ended, cache):
        active = unfinished(ended, counts)
        # All that comes before it is in the cache, of the rows that are
        # continued here: it was given, or the steps before wrote it.
        place = tf.reduce_min(tf.where(active, counts, size))
        last = token_ids[:, place - 1 : place]
        logits, _, cache = model.call_with_cache(last, cache, place - 1)
        best = tf.argmax(
            tf.cast(logits[:, 0, :vocabulary_size], tf.float32),
            axis=-1,
            output_type=tf.int32,
        )
        here = active & (counts == place)
        token_ids = tf.where(
            here[:, None] & (places == place), best[:, None], token_ids
        )
        counts += tf.cast(here, tf.int32)
        ended |= here & (best == end_token_id)
        return token_ids, counts, ended, cache

    token_ids, counts, _, _ = tf.while_loop(
        more,
        step,
        (token_ids, given, tf.zeros_like(given, tf.bool), cache),
    )
    return token_ids, counts
