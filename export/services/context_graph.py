"""The windows and answers of a `FixedHeadSpanLabeler` in a graph.

`keras_fixedhead.context_windows` and the preprocessor do the same in Python.

Shape letters: B questions, N windows of all of them, T longest window, C tokens
of all contexts, W their words, P tokens of all windows, L longest answer.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

import keras_fixedhead
from export.services import service
from keras_fixedhead.graph_text import character_classes

# The most windows of a context, whose rest is ignored: a megabyte would take
# minutes.
MAX_WINDOWS = 64
MAX_ANSWER_LENGTH = 30
# Windows that the model sees at once, to bound the memory of a request.
_AT_ONCE = 32
# The score of no answer, and the maximum of an empty segment.
_NOWHERE = tf.float64.min


def words(
    contexts: tf.Tensor, tokenizer: keras_fixedhead.FixedHeadTokenizer
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Splits contexts, string `[B]`, where the tokenizer does.

    Returns the words and where they start and end in the context, in bytes,
    each `[B, None]`. Bytes that are not UTF-8 belong to the words beside them.
    """
    # A NUL would end the split; the tokenizer removes this character too.
    contexts = tf.strings.regex_replace(contexts, r"\x00", "\x01")
    classes = character_classes()
    special = map(re.escape, tokenizer.special_tokens_in_texts)
    kept = "|".join([*special, f"[{classes.alone}]"])
    return tf_text.regex_split_with_offsets(
        contexts,
        f"{kept}|[ {classes.space}]",
        keep_delim_regex_pattern=kept,
    )


@dataclasses.dataclass(frozen=True)
class WindowBatch:
    """The windows of B questions."""

    inputs: dict[str, tf.Tensor]  # of the model, int32 [N, T]
    question: tf.Tensor  # int32 [N], rising: whose window it is
    token: tf.Tensor  # int32 [N, T]: which of the C tokens is there
    is_context: tf.Tensor  # bool [N, T]: whether it is of the context
    # bool [N, T]: whether no other window has more context around the token
    may_start: tf.Tensor
    # int32 [C + 1]: bytes of the context before and up to the end of the
    # token's word; the last is 0
    starts: tf.Tensor
    ends: tf.Tensor


def windows(
    preprocessor: keras_fixedhead.FixedHeadSpanLabelerPreprocessor,
    questions: tf.Tensor,
    contexts: tf.Tensor,
) -> WindowBatch:
    """Divides questions and contexts, string `[B]`, as `preprocessor.windows`,
    into at most `MAX_WINDOWS` windows each.

    It tokenizes word by word, which gives the same ids.
    """
    tokenizer = preprocessor.tokenizer
    questions = tf.cast(tokenizer.tokenize_in_graph(questions), tf.int32)
    questions = questions[:, : preprocessor.max_question_length]
    parts, starts, ends = words(contexts, tokenizer)
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
    column = tf.zeros([tf.size(question), 1], tf.int32)
    begin = tf.concat([column, tf.zeros_like(before), column], axis=1)

    def placed(of_tokens):
        """Returns values of the tokens where these are in the rows, [N, T]."""
        of_tokens = tf.cast(of_tokens, tf.int32)
        return tf.concat([begin, of_tokens, column], axis=1).to_tensor()

    return WindowBatch(
        inputs=preprocessor.pack_in_graph([before, tf.gather(ids, token)]),
        question=question,
        token=placed(token),
        is_context=placed(tf.ones_like(token)) > 0,
        may_start=placed(has_most) > 0,
        starts=_of_tokens(starts, per_word),
        ends=_of_tokens(ends, per_word),
    )


def _of_tokens(of_words, per_word):
    """Repeats the places of words for their tokens, int32 `[C + 1]`."""
    places = tf.repeat(of_words.flat_values, per_word)
    return tf.cast(tf.concat([places, [0]], axis=0), tf.int32)


def _has_most_context(token, num_tokens):
    """Whether a token has most context in this window, bool `[P]`; the first
    such window counts, as in `run_squad.py`."""
    lengths = token.row_lengths()
    left = tf.ragged.range(lengths).flat_values  # [P]
    length = tf.gather(lengths, token.value_rowids())
    # In float64, as in `context_windows`, so that ties are the same.
    score = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    _, first = _best_of_each(score, token.flat_values, num_tokens)
    return tf.gather(first, token.flat_values) == tf.range(tf.size(score))


def _best_of_each(scores, segments, count):
    """Returns the best score of each segment, and the place of the first."""
    best = tf.math.unsorted_segment_max(scores, segments, count)
    places = tf.range(tf.size(scores))
    equal = scores == tf.gather(best, segments)
    places = tf.where(equal, places, places.dtype.max)
    return best, tf.math.unsorted_segment_min(places, segments, count)


def answers(
    label: Callable, found: WindowBatch, contexts: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Finds the best answer of each question, as `context_windows.decode`.

    `label` maps the model's inputs to logits `start` and `end`, `[N, T]`.
    Returns `answer`, string `[B]`, whole words without bytes that are not
    UTF-8, which JSON cannot carry; `score`, float32 `[B]`, the sum of two
    logits; `start` and `end`, int32 `[B]`, in bytes of the context. All are
    empty or 0 for a context without tokens.
    """

    def best_of(rows):
        logits = label({name: x[rows] for name, x in found.inputs.items()})
        return _best_spans(
            logits["start"],
            logits["end"],
            found.may_start[rows],
            found.is_context[rows],
            found.token[rows],
        )

    # The best span of each window: float64, int32 and int32 [N].
    score, first, last = service.some_at_once(
        best_of,
        tf.shape(found.token)[0],
        _AT_ONCE,
        [tf.float64, tf.int32, tf.int32],
    )
    # [B]
    best, window = _best_of_each(score, found.question, tf.size(contexts))
    there = best > _NOWHERE
    # The last entry of `starts` and `ends` is 0, for no answer.
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


def _best_spans(start, end, may_start, is_context, token):
    """Finds the score, the first and the last token of each window's best span,
    the first of equal ones."""
    start = tf.where(may_start, tf.cast(start, tf.float64), -np.inf)
    end = tf.where(is_context, tf.cast(end, tf.float64), -np.inf)
    ends = tf.signal.frame(
        end, MAX_ANSWER_LENGTH, 1, pad_end=True, pad_value=-np.inf
    )
    scores = start[:, :, tf.newaxis] + ends  # [N, T, L]
    count, length = tf.unstack(tf.shape(start))
    scores = tf.reshape(scores, [count, length * MAX_ANSWER_LENGTH])
    # tf.argmax needs a place even if there are no windows.
    scores = tf.pad(scores, [[0, 0], [0, 1]], constant_values=-np.inf)
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    first = tf.gather(token, best // MAX_ANSWER_LENGTH, batch_dims=1)
    return (
        tf.maximum(tf.reduce_max(scores, axis=1), _NOWHERE),
        first,
        first + best % MAX_ANSWER_LENGTH,
    )
