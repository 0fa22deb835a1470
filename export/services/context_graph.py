"""Questions and contexts as windows, and answers between bytes, in a graph.

What `keras_fixedhead.context_windows` and the preprocessor of a
`FixedHeadSpanLabeler` do in Python, by operations that a model server has.

Shape letters: B questions, N windows of all of them, T longest window, C tokens
of all contexts, W their words, P tokens of all windows, L longest answer.
"""

import dataclasses
import re

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_fixedhead.graph_text import character_classes

# The most windows of a context; of what follows them nothing is answered. A
# context of a megabyte would take minutes else.
MAX_WINDOWS = 64
MAX_ANSWER_LENGTH = 30
# Windows that the model sees at once, which bounds the memory of a request.
_AT_ONCE = 32
# The score of no answer: what a segment without values has for its maximum.
_NOWHERE = tf.float64.min


def words(contexts, special_tokens=()):
    """Divides contexts where the tokenizer does.

    Args:
        contexts: string `tf.Tensor` `[B]`. UTF-8; bytes that are none belong
            to the words beside them.
        special_tokens: those that the tokenizer looks for in texts.

    Returns:
        Three `tf.RaggedTensor` `[B, None]`: the words, string, and where they
        start and end in the context, int64, in bytes, `end` not included.
    """
    # Else the split ends where a text has a NUL; this too is removed later.
    contexts = tf.strings.regex_replace(contexts, r"\x00", "\x01")
    classes = character_classes()
    kept = "|".join([*map(re.escape, special_tokens), f"[{classes.alone}]"])
    return tf_text.regex_split_with_offsets(
        contexts,
        f"{kept}|[ {classes.space}]",
        keep_delim_regex_pattern=kept,
    )


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of B questions.

    Attributes:
        inputs: the model's inputs, a dictionary of int32 `[N, T]`.
        question: int32 `[N]`. Which question each is of, rising.
        token: int32 `[N, T]`. Which of the C tokens stands there.
        is_context: bool `[N, T]`. Where the tokens of the context stand.
        may_start: bool `[N, T]`. Where they have most context of all windows
            that hold them; the first such window has it.
        starts: int32 `[C + 1]`. Where the word of each token starts in its
            context, in bytes; the last is 0.
        ends: int32 `[C + 1]`. Where it ends.
    """

    inputs: dict[str, tf.Tensor]
    question: tf.Tensor
    token: tf.Tensor
    is_context: tf.Tensor
    may_start: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def windows(preprocessor, questions, contexts):
    """Divides questions and contexts as `preprocessor.windows` does.

    Words are tokenized one by one, which gives the same ids.

    Args:
        preprocessor: a `FixedHeadSpanLabelerPreprocessor`.
        questions: string `tf.Tensor` `[B]`.
        contexts: string `tf.Tensor` `[B]`.

    Returns:
        A `Windows`, of at most `MAX_WINDOWS` windows for each question.
    """
    tokenizer = preprocessor.tokenizer
    questions = tf.cast(tokenizer.tokenize_in_graph(questions), tf.int32)
    questions = questions[:, : preprocessor.max_question_length]
    parts, starts, ends = words(contexts, tokenizer.special_tokens_in_texts)
    pieces = tokenizer.tokenize_in_graph(parts.flat_values)  # [W, None]
    per_word = pieces.row_lengths()
    splits = tf.gather(pieces.row_splits, parts.row_splits)  # [B + 1]
    ids = tf.cast(pieces.flat_values, tf.int32)  # [C]

    room = preprocessor.sequence_length - 3 - questions.row_lengths()  # [B]
    step = tf.minimum(room, preprocessor.document_stride)
    most = (MAX_WINDOWS - 1) * step + room
    lengths = tf.minimum(splits[1:] - splits[:-1], most)
    further = tf.maximum(lengths - room, 0)
    counts = 1 + (further + step - 1) // step  # windows, [B]
    question = tf.repeat(tf.range(tf.size(counts)), counts)  # [N]
    skipped = tf.ragged.range(counts).flat_values * tf.gather(step, question)
    first = tf.gather(splits[:-1], question) + skipped  # [N], of the C tokens
    held = tf.minimum(
        tf.gather(room, question), tf.gather(lengths, question) - skipped
    )
    token = tf.ragged.range(first, first + held)  # [N, None]
    has_most = token.with_flat_values(_has_most_context(token, tf.size(ids)))

    before = tf.gather(questions, question)  # [N, None]
    column = tf.ones([tf.size(question), 1], tf.int32)
    begin = tf.concat([column, before, column], axis=1)
    none = tf.zeros_like(begin)
    part = tf.ones_like(token, tf.int32)
    token_ids = tf.concat(
        [
            column * tokenizer.start_token_id,
            before,
            column * tokenizer.end_token_id,
            tf.gather(ids, token),
            column * tokenizer.end_token_id,
        ],
        axis=1,
    )

    def padded(of_begin, of_part, of_end):
        return tf.concat([of_begin, of_part, of_end], axis=1).to_tensor()

    return Windows(
        inputs={
            "token_ids": token_ids.to_tensor(tokenizer.pad_token_id),
            "padding_mask": tf.ones_like(token_ids).to_tensor(),
            "segment_ids": padded(none, part, column),
        },
        question=question,
        token=padded(none, tf.cast(token, tf.int32), 0 * column),
        is_context=padded(none, part, 0 * column) > 0,
        may_start=padded(none, tf.cast(has_most, tf.int32), 0 * column) > 0,
        starts=_of_tokens(starts, per_word),
        ends=_of_tokens(ends, per_word),
    )


def _of_tokens(of_words, per_word):
    """Places of words as those of their tokens, int32 `[C + 1]`."""
    places = tf.repeat(of_words.flat_values, per_word)
    return tf.cast(tf.concat([places, [0]], axis=0), tf.int32)


def _has_most_context(token, num_tokens):
    """In which window each token has most context, as `run_squad.py`.

    Args:
        token: int64 `tf.RaggedTensor` `[N, None]`, which of the C tokens each
            window holds.
        num_tokens: int32 scalar, C.

    Returns:
        bool `[P]`.
    """
    window = token.value_rowids()  # [P]
    lengths = token.row_lengths()
    left = tf.ragged.range(lengths).flat_values
    length = tf.gather(lengths, window)
    # In float64, as in `context_windows`, so that ties are the same.
    score = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    place = token.flat_values
    best = tf.math.unsorted_segment_max(score, place, num_tokens)
    equal = tf.where(score == tf.gather(best, place), window, window.dtype.max)
    holder = tf.math.unsorted_segment_min(equal, place, num_tokens)
    return tf.gather(holder, place) == window


def answers(label, found, contexts):
    """The best answer of each question, as `context_windows.decode` finds it.

    Args:
        label: function of the model's inputs, int32 `[N, T]`, to logits
            `start` and `end`, `[N, T]`.
        found: the `Windows` of B questions.
        contexts: string `tf.Tensor` `[B]`, theirs.

    Returns:
        `answer`, string `[B]`: the context from the first byte of the word
        of the first token to the last byte of the word of the last token,
        without bytes that are no UTF-8, which no JSON carries;
        `score`, float32 `[B]`, the sum of the two logits; `start` and `end`,
        int32 `[B]`, where it is in the context in bytes, `end` not included.
        All are empty or 0 for a context without tokens.
    """
    score, first, last = _best_of_windows(label, found)  # [N]
    size = tf.size(contexts)
    best = tf.math.unsorted_segment_max(score, found.question, size)  # [B]
    window = tf.range(tf.size(score))
    equal = tf.where(
        score == tf.gather(best, found.question), window, window.dtype.max
    )
    window = tf.math.unsorted_segment_min(equal, found.question, size)
    there = best > _NOWHERE
    # The last place, which is 0, stands for no answer.
    nothing = tf.size(found.starts) - 1
    first = tf.where(there, tf.gather(first, window), nothing)
    last = tf.where(there, tf.gather(last, window), nothing)
    start, end = tf.gather(found.starts, first), tf.gather(found.ends, last)
    answer = tf.strings.unicode_transcode(
        tf.strings.substr(contexts, start, end - start),
        "UTF-8",
        "UTF-8",
        errors="ignore",
        replace_control_characters=False,
    )
    return {
        "answer": answer,
        "score": tf.cast(tf.where(there, best, 0.0), tf.float32),
        "start": start,
        "end": end,
    }


def _best_of_windows(label, found):
    """The best span of each window, a few windows at a time.

    Returns:
        Its score, float64 `[N]`, `_NOWHERE` where there is none, and its
        first and last token, int32 `[N]`, of the C tokens.
    """
    size = tf.shape(found.token)[0]
    # No window at all is one empty batch.
    batches = tf.maximum((size + _AT_ONCE - 1) // _AT_ONCE, 1)

    def body(number, results):
        rows = slice(number * _AT_ONCE, (number + 1) * _AT_ONCE)
        logits = label({name: x[rows] for name, x in found.inputs.items()})
        best = _best_spans(
            logits["start"],
            logits["end"],
            found.may_start[rows],
            found.is_context[rows],
            found.token[rows],
        )
        return number + 1, [
            array.write(number, value)
            for array, value in zip(results, best, strict=True)
        ]

    arrays = [
        tf.TensorArray(dtype, batches, infer_shape=False, element_shape=[None])
        for dtype in (tf.float64, tf.int32, tf.int32)
    ]
    _, arrays = tf.while_loop(
        lambda number, _: number < batches,
        body,
        [0, arrays],
        parallel_iterations=1,
    )
    return [array.concat() for array in arrays]


def _best_spans(start, end, may_start, is_context, token):
    """The best span of each window; of equal ones the first.

    Args:
        start: float `[N, T]`.
        end: float `[N, T]`.
        may_start: bool `[N, T]`.
        is_context: bool `[N, T]`.
        token: int32 `[N, T]`.

    Returns:
        As `_best_of_windows`.
    """
    start = tf.where(may_start, tf.cast(start, tf.float64), -np.inf)
    end = tf.where(is_context, tf.cast(end, tf.float64), -np.inf)
    end = tf.pad(
        end, [[0, 0], [0, MAX_ANSWER_LENGTH - 1]], constant_values=-np.inf
    )
    places = tf.range(tf.shape(start)[1])[:, tf.newaxis]
    ends = tf.gather(end, places + tf.range(MAX_ANSWER_LENGTH), axis=1)
    scores = start[:, :, tf.newaxis] + ends  # [N, T, L]
    scores = tf.reshape(
        scores, [tf.shape(start)[0], tf.size(places) * MAX_ANSWER_LENGTH]
    )
    # Of no window all are of length 0, where there is no best place.
    scores = tf.pad(scores, [[0, 0], [0, 1]], constant_values=-np.inf)
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    first = tf.gather(token, best // MAX_ANSWER_LENGTH, batch_dims=1)
    return (
        tf.maximum(tf.reduce_max(scores, axis=1), _NOWHERE),
        first,
        first + best % MAX_ANSWER_LENGTH,
    )
