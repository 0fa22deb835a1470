"""Documents cut into chunks, and chunks into two segments.

Each document is cut into chunks of nearly equal length, as few as fit. A
chunk's two segments are divided at a random line that begins inside it, in a
chunk of one line at a random token; text from another document may take the
place of the latter.

A window is what is in memory at a time, the documents of some shards.

Shape letters: M chunks, N tokens of a window.
"""

import typing

import tensorflow as tf

from training.corpus.tokenized import load_shards
from training.engine.global_batch import scaled


class Window(typing.NamedTuple):
    """The documents of some shards.

    Attributes:
        token_ids: int32 tensor `[N]`.
        line_starts: int64 tensor `[lines]`, where in `token_ids`.
        document_starts: int64 tensor `[documents + 1]`, where in `token_ids`.
        chunk_starts: int64 tensor `[documents + 1]`, the number of each
            document's first chunk.
    """

    token_ids: tf.Tensor
    line_starts: tf.Tensor
    document_starts: tf.Tensor
    chunk_starts: tf.Tensor


def num_chunks(document_lengths, chunk_length):
    """How many chunks documents give; an integer array or tensor as theirs."""
    return -(-document_lengths // chunk_length)


def load_window(paths: tf.Tensor, chunk_length: int) -> Window:
    """Loads some shards, string tensor `[shards]`, and cuts their documents.

    Args:
        paths: What to load.
        chunk_length: Integer, tokens of a chunk at most.
    """
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


def chunk_bounds(window, chunks):
    """Where chunks begin and end, and which documents they are of.

    Documents are cut into pieces whose lengths differ by one at most.

    Returns:
        int64 tensors `[M]`: start and end in `token_ids`, document.
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


def sentence_pairs(window, chunks, draws):
    """Two segments of each chunk, the second one from elsewhere or not.

    Text from elsewhere is as long as what it stands for, and begins a line
    where that does, so that neither gives it away. Only a document that is
    shorter gives all it has.

    Args:
        window: `Window`.
        chunks: int64 tensor `[M]`.
        draws: Float tensor `[M, 4]`: where to divide, whether to take other
            text, from which chunk, where in it to begin.

    Returns:
        Ragged int32 tensors `[M, (tokens)]` of the first and the second
        segments, and a bool tensor `[M]`, true for text from elsewhere.
    """
    start, end, document = chunk_bounds(window, chunks)
    split = _split(window, start, end, draws[:, 0])
    elsewhere = draws[:, 1] < 0.5
    # Any chunk but those of the same document.
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


def texts(window, starts, ends):
    """Stretches of a window's tokens, a ragged int32 tensor `[M, (tokens)]`."""
    return tf.gather(window.token_ids, tf.ragged.range(starts, ends))


def _split(window, start, end, draws):
    """Where to divide chunks: where a line begins, if one does inside.

    Args:
        draws: Float tensor `[M]` in `[0, 1)`, decides which.

    Returns:
        int64 tensor `[M]`, greater than `start` and smaller than `end`.
    """
    lines = window.line_starts
    first = tf.searchsorted(lines, start, side="right", out_type=tf.int64)
    count = tf.searchsorted(lines, end, side="left", out_type=tf.int64) - first
    line = first + scaled(draws, tf.maximum(count, 1))
    return tf.where(
        count > 0, tf.gather(lines, line), _inside(start, end, draws)
    )


def _inside(start, end, draws):
    """Any place greater than `start` and smaller than `end`."""
    return start + 1 + scaled(draws, end - start - 1)


def _line_start(window, positions):
    """Where the lines begin that positions are in, int64 tensors `[M]`."""
    lines = window.line_starts
    return tf.gather(lines, tf.searchsorted(lines, positions, "right") - 1)
