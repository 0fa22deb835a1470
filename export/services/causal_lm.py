"""A language model, served: the likelihood of texts, and their continuation.

Shape letters: B batch, T padded length, P predicted tokens, S sequence
length.
"""

import numpy as np
import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden
from export.services import service

_DEFAULT_MAX_NEW_TOKENS = 64
# Tokens whose logits are in memory at once: a quarter of a gigabyte for 30,000
# words.
_MOST_PLACES = 2048


@service.serves(keras_fixedhead.FixedHeadCausalLM)
def serve(
    model: keras_fixedhead.FixedHeadCausalLM,
    preprocessor: keras_fixedhead.FixedHeadCausalLMPreprocessor,
    max_new_tokens: int | None = None,
) -> service.Service:
    """Serves the likelihood of `text`, string `[B]`, and its continuation.

    `serving_default` answers `log_likelihood`, float32 `[B]`, the natural
    logarithm of the probability of a text, as the preprocessor cuts it, and
    its end; and `num_tokens`, int32 `[B]`, of how many tokens. `from_token_ids`
    answers the same for sequences of one segment, padded at their end.

    `generate` answers `generated`, string `[B]`: the text and its greedy
    continuation up to `[SEP]`, without special tokens, by at most
    `max_new_tokens` within the preprocessor's `sequence_length`.
    """
    tokenizer, longest = preprocessor.tokenizer, preprocessor.sequence_length
    room = longest - 1  # beside [CLS]
    if max_new_tokens is None:
        max_new_tokens = min(_DEFAULT_MAX_NEW_TOKENS, room)
    if not 1 <= max_new_tokens <= room:
        raise ValueError(
            f"`max_new_tokens` must be from 1 to {room}, received "
            f"{max_new_tokens}."
        )

    def limits(given):
        return ops.minimum(given + max_new_tokens, longest)

    def likelihood(text):
        inputs, labels, weights = preprocessor(text)
        weights = tf.cast(weights, tf.int32)
        width = _largest(tf.reduce_sum(weights, axis=1))
        tensors = inputs["token_ids"], labels, weights
        return _likelihood_in_graph(model, *(x[:, :width] for x in tensors))

    def expected_likelihood(texts):
        inputs, labels, weights = preprocessor(texts)
        tensors = {**inputs, "labels": labels, "weights": weights}
        return _likelihood(
            model, *golden.trimmed(service.to_numpy(tensors)).values()
        )

    def continued(text):
        inputs = preprocessor.generate_preprocess(text)
        given = tf.reduce_sum(tf.cast(inputs["padding_mask"], tf.int32), axis=1)
        ids = inputs["token_ids"][:, : _largest(given)]
        return _continue_greedily(model, ids, given, limits(given), tokenizer)

    def generate(text):
        token_ids, counts = continued(text)
        words = tf.sequence_mask(counts, tf.shape(token_ids)[1])
        for special in tokenizer.special_token_ids:
            words &= token_ids != special
        words = tf.ragged.boolean_mask(token_ids, words)
        return {"generated": tokenizer.detokenize(words)}

    def expected_generate(texts):
        inputs = service.to_numpy(preprocessor.generate_preprocess(texts))
        given = inputs["padding_mask"].sum(axis=1)
        guesses, _ = tf.function(continued, autograph=False)(tf.constant(texts))
        most = ops.convert_to_numpy(limits(given))
        generated, margins = [], []
        for row, first, limit in zip(guesses.numpy(), given, most, strict=True):
            row, margin = _continued(model, row[:limit], first, tokenizer)
            tokens = {"token_ids": row, "padding_mask": np.ones_like(row, bool)}
            generated.append(preprocessor.generate_postprocess(tokens))
            margins.append(margin)
        outputs = {"generated": np.array(generated)}
        return service.Answers(outputs, np.array(margins))

    def tokenized(texts):
        inputs, _, _ = preprocessor(texts)
        inputs = service.to_numpy(inputs)
        return {**inputs, "segment_ids": np.zeros_like(inputs["token_ids"])}

    def compared(inputs):
        predictions = _predictions(inputs)
        some = predictions[-1].any(axis=1)
        found = _of_each_token(model, *(x[some] for x in predictions))
        return service.Answers({"log_likelihood": found})

    asked = {"text": golden.TEXTS}
    continuable = {"text": (*golden.TEXTS, *_nearly_full(preprocessor))}
    return service.Service(
        model=model,
        preprocessor=preprocessor,
        texts={
            session.DEFAULT_SIGNATURE: service.TextSignature(
                asked, likelihood, expected_likelihood
            ),
            "generate": service.TextSignature(
                continuable, generate, expected_generate
            ),
        },
        golden_ids=lambda: tokenized(list(golden.TEXTS)),
        packed=lambda inputs: _likelihood_of_ids_in_graph(model, inputs),
        padded=lambda inputs: _likelihood(model, *_predictions(inputs)),
        tokenize=lambda texts: golden.trimmed(tokenized(texts)),
        described={"max_new_tokens": max_new_tokens},
        compared=compared,
    )


def _largest(counts):
    """The largest of int32 `[B]`, at least 1."""
    return tf.maximum(tf.reduce_max(counts), 1)


def _likelihood_in_graph(model, token_ids, labels, weights):
    """The likelihood of sequences, int32 `[B, T]`; `weights` is 1 where a label
    follows."""
    batch, length = tf.unstack(tf.shape(token_ids))
    rows = tf.maximum(_MOST_PLACES // tf.maximum(length, 1), 1)

    def some(rows):
        logits, packing = model.predict_packed(
            {"token_ids": token_ids[rows], "padding_mask": weights[rows]}
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            packing.pack(labels[rows]), tf.cast(logits, tf.float32)
        )
        # [P] -> [P, 1] -> [B, T, 1]
        losses = packing.pad(losses[:, None])
        return [-tf.reduce_sum(losses, axis=[1, 2])]

    [log_likelihood] = service.some_at_once(some, batch, rows, [tf.float32])
    return {
        "log_likelihood": log_likelihood,
        "num_tokens": tf.reduce_sum(weights, axis=1),
    }


def _likelihood_of_ids_in_graph(model, inputs):
    """The likelihood of a model's inputs."""
    real = tf.cast(inputs["padding_mask"] != 0, tf.int32)
    asserted = [
        tf.debugging.Assert(
            tf.reduce_all(real[:, 1:] <= real[:, :-1]),
            ["padding_mask must be 0 from the first 0 of a row on."],
        ),
        tf.debugging.Assert(
            tf.reduce_all(inputs["segment_ids"] == 0),
            ["segment_ids must be 0: all is one segment."],
        ),
    ]
    with tf.control_dependencies(asserted):
        token_ids = tf.identity(inputs["token_ids"])
    return _likelihood_in_graph(
        model,
        token_ids,
        tf.roll(token_ids, -1, axis=1),
        tf.concat([real[:, 1:], tf.zeros_like(real[:, :1])], axis=1),
    )


def _continue_greedily(model, token_ids, given, limits, tokenizer):
    """Continues int32 `[B, T]` by the most probable tokens, with a cache.

    `given` and `limits`, int32 `[B]`, are how many tokens of each row are given
    and how many it may have, at least 1. Ids that the tokenizer lacks are not
    generated: to detokenize them would crash the server. Returns sequences
    `[B, S]` and their lengths `[B]`.
    """
    batch, width = tf.unstack(tf.shape(token_ids))
    # The largest limit of an empty batch is negative.
    size = tf.maximum(tf.reduce_max(limits), width)
    cache = model.backbone.new_cache(batch, size)
    _, _, cache = model.call_with_cache(token_ids, cache, 0)
    token_ids = tf.pad(token_ids, [[0, 0], [0, size - width]])
    places = tf.range(size)

    def more(token_ids, counts, active, cache):
        return tf.reduce_any(active)

    def step(token_ids, counts, active, cache):
        # Computes one place of all rows, and skips those that no row needs. For
        # the rows that continue here, the cache holds all that comes before.
        place = tf.reduce_min(tf.where(active, counts, size))
        last = token_ids[:, place - 1 : place]
        logits, _, cache = model.call_with_cache(last, cache, place - 1)
        best = tf.argmax(
            tf.cast(logits[:, 0, : tokenizer.vocabulary_size()], tf.float32),
            axis=-1,
            output_type=tf.int32,
        )
        here = active & (counts == place)
        token_ids = tf.where(
            here[:, None] & (places == place), best[:, None], token_ids
        )
        counts += tf.cast(here, tf.int32)
        active &= (counts < limits) & ~(here & (best == tokenizer.end_token_id))
        return token_ids, counts, active, cache

    token_ids, counts, _, _ = tf.while_loop(
        more, step, (token_ids, given, given < limits, cache)
    )
    return token_ids, counts


def _predictions(inputs):
    """Returns the arguments of `_of_each_token` for a model's inputs."""
    token_ids, real = inputs["token_ids"], inputs["padding_mask"]
    labels, weights = np.zeros_like(token_ids), np.zeros_like(real)
    labels[:, :-1] = token_ids[:, 1:]
    weights[:, :-1] = real[:, 1:]
    return token_ids, real, labels, weights


def _of_each_token(model, token_ids, real, labels, weights):
    """The Keras model's log-likelihood of each label, float32 `[B, T]`, zero
    where `weights` is 0; a few rows at a time, as the logits are large."""
    rows = max(_MOST_PLACES // token_ids.shape[1], 1)
    losses = []
    for start in range(0, len(token_ids), rows):
        some = slice(start, start + rows)
        found = model.score(token_ids[some], real[some], "loss", labels[some])
        losses.append(ops.convert_to_numpy(found))
    losses = np.concatenate(losses)
    return np.where(weights == 1, -losses, 0).astype("float32")


def _likelihood(model, token_ids, real, labels, weights):
    """The Keras model's answer about sequences."""
    found = _of_each_token(model, token_ids, real, labels, weights)
    num_tokens = weights.sum(axis=1, dtype="int32")
    outputs = {"log_likelihood": found.sum(axis=1), "num_tokens": num_tokens}
    return service.Answers(outputs)


def _continued(model, token_ids, given, tokenizer):
    """Continues a sequence, int32 `[S]`, by the Keras model without a cache.

    Its first `given` tokens are given, the rest is a guess. Also returns the
    least margin of a chosen token over the next best, relative to the largest
    logit if that is above 1.
    """
    while True:
        logits = model.score(token_ids[None])
        logits = service.to_numpy({"logits": logits})["logits"][0]
        logits = logits[given - 1 : -1, : tokenizer.vocabulary_size()]
        best = logits.argmax(axis=-1).astype("int32")
        ends = np.flatnonzero(best == tokenizer.end_token_id)
        chosen = best[: ends[0] + 1] if ends.size else best
        stop = given + len(chosen)
        # Each pass makes at least one more token right.
        if np.array_equal(token_ids[given:stop], chosen):
            break
        token_ids = np.concatenate([token_ids[:given], best])
    if not chosen.size:
        return token_ids, np.inf
    logits = np.sort(logits[: len(chosen)], axis=-1)
    sizes = np.maximum(np.abs(logits).max(), 1)
    return token_ids[:stop], ((logits[:, -1] - logits[:, -2]) / sizes).min()


def _nearly_full(preprocessor):
    """Returns texts that leave room for a token or two, as a smaller dtype
    rarely decides many tokens in a row."""
    words = " ".join(golden.TEXTS).split()
    counts = [len(ids) for ids in preprocessor.tokenizer(words)]
    texts = []
    for start in range(8):
        room = preprocessor.sequence_length - 2 - start // 4  # beside [CLS]
        sums = np.cumsum(counts[start:])
        last = start + np.searchsorted(sums, room, side="right")
        texts.append(" ".join(words[start:last]))
    return texts
