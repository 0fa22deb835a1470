"""Documents cut into chunks, and chunks into two segments.

A document is cut into as few chunks as fit, of nearly equal length. A chunk is
split at a random line that begins inside it, or at a random token of its only
line; text from another document may replace the second segment.

A window holds the documents of the shards that are in memory together.

Shape letters: M chunks, N tokens of a window.
"""

import typing

import tensorflow as tf

from training.corpus.tokenized import load_shards
from training.engine.global_batch import scaled


class Window(typing.NamedTuple):
    """The documents of some shards.

    int32 `token_ids` `[N]`, and int64 indices into them: `line_starts`
    `[lines + 1]` and `document_starts` `[documents + 1]`. int64 `chunk_starts`
    `[documents + 1]` has the number of each document's first chunk.
    """

    token_ids: tf.Tensor
    line_starts: tf.Tensor
    document_starts: tf.Tensor
    chunk_starts: tf.Tensor


def num_chunks(document_lengths, chunk_length: int):
    """Returns the chunks in each document, for integer arrays or tensors."""
    return -(-document_lengths // chunk_length)


def load_window(paths: tf.Tensor, chunk_length: int) -> Window:
    """Loads shards, string tensor `[shards]`, and cuts their documents."""
    loaded = load_shards(paths)
    document_starts = loaded["document_starts"]
    chunks = num_chunks(
        document_starts[1:] - document_starts[:-1], chunk_length
    )
    return Window(
        loaded["token_ids"],
        loaded["line_starts"],
        document_starts,
        tf.concat([[0], tf.cumsum(chunks)], axis=0),
    )


def chunk_bounds(
    window: Window, chunks: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the start and end of chunks in `token_ids`, and their documents.

    All are int64 tensors `[M]`. The lengths of a document's chunks differ by
    one at most.
    """
    document = tf.searchsorted(window.chunk_starts, chunks, side="right") - 1
    first = tf.gather(window.chunk_starts, document)
    count = tf.gather(window.chunk_starts, document + 1) - first
    document_start = tf.gather(window.document_starts, document)
    length = tf.gather(window.document_starts, document + 1) - document_start
    piece = chunks - first
    return (
        document_start + length * piece // count,
        document_start + length * (piece + 1) // count,
        document,
    )


def sentence_pairs(
    window: Window, chunks: tf.Tensor, draws: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
    """Splits chunks, int64 `[M]`, into two segments, for next-sentence loss.

    The second segment may come from elsewhere. It then has the length of what
    it replaces, and begins a line if that did, so that neither gives it away;
    only a document that is shorter gives all it has.

    Columns of `draws`, float `[M, 4]`, decide where to split, whether to take
    other text, from which chunk, and where in it to begin.

    Returns the first and second segments, ragged int32 `[M, (tokens)]`, and a
    bool tensor `[M]`, true for text from elsewhere.
    """
    start, end, document = chunk_bounds(window, chunks)
    split = _split(window, start, end, draws[:, 0])
    elsewhere = draws[:, 1] < 0.5
    # Any chunk of another document.
    first = tf.gather(window.chunk_starts, document)
    own = tf.gather(window.chunk_starts, document + 1) - first
    other = scaled(draws[:, 2], window.chunk_starts[-1] - own)
    other = tf.where(other >= first, other + own, other)
    other_start, other_end, other_document = chunk_bounds(window, other)
    document_start = tf.gather(window.document_starts, other_document)
    document_end = tf.gather(window.document_starts, other_document + 1)
    length = end - split
    at_line = _line_start(window, split) == split
    begin = tf.where(
        at_line,
        _split(window, other_start, other_end, draws[:, 3]),
        _inside(other_start, other_end, draws[:, 3]),
    )
    begin = tf.maximum(tf.minimum(begin, document_end - length), document_start)
    line = _line_start(window, begin)
    next_token = tf.minimum(begin + 1, document_end - 1)
    begin = tf.where(at_line, line, tf.where(begin == line, next_token, begin))
    return (
        texts(window, start, split),
        texts(
            window,
            tf.where(elsewhere, begin, split),
            tf.where(elsewhere, tf.minimum(begin + length, document_end), end),
        ),
        elsewhere,
    )


def texts(
    window: Window, starts: tf.Tensor, ends: tf.Tensor
) -> tf.RaggedTensor:
    """Returns stretches of a window's tokens, ragged int32 `[M, (tokens)]`."""
    return tf.gather(window.token_ids, tf.ragged.range(starts, ends))


def _split(window, start, end, draws):
    """Draws a line that begins inside each chunk, or else a token inside."""
    lines = window.line_starts
    first = tf.searchsorted(lines, start, side="right", out_type=tf.int64)
    count = tf.searchsorted(lines, end, side="left", out_type=tf.int64) - first
    line = first + scaled(draws, tf.maximum(count, 1))
    return tf.where(
        count > 0, tf.gather(lines, line), _inside(start, end, draws)
    )


def _inside(start, end, draws):
    """Draws a position greater than `start` and smaller than `end`."""
    return start + 1 + scaled(draws, end - start - 1)


def _line_start(window, positions):
    """Returns the start of the line that each position is in."""
    lines = window.line_starts
    return tf.gather(lines, tf.searchsorted(lines, positions, "right") - 1)
