"""Documents cut into chunks, and chunks into two segments.

A document is cut into as few chunks as fit, of nearly equal length. A chunk is
split at a random line that begins inside it, or at a random token of its only
line; text from another document may replace the second segment.

A window holds the documents of the shards that are in memory together.

Shape letters: M chunks, N tokens of a window.
"""

import abc
import math
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from training.corpus.tokenized import Shard, load_shards
from training.engine.configs import check_at_least
from training.engine.global_batch import Share, evaluation_numbers, scaled


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


def load_window(paths: tf.Tensor, chunk_length: int) -> Window:
    """Loads shards, a string tensor, and cuts their documents."""
    loaded = load_shards(paths)
    document_starts = loaded["document_starts"]
    lengths = document_starts[1:] - document_starts[:-1]
    chunks = -(-lengths // chunk_length)
    return Window(**loaded, chunk_starts=tf.concat([[0], tf.cumsum(chunks)], 0))


def chunk_bounds(
    window: Window, chunks: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the start and end of chunks, and their documents, int64 `[M]`."""
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

    Returns both, ragged int32 `[M, (tokens)]`, and a bool tensor `[M]`, true
    where the second comes from elsewhere. It then has the length of what it
    replaces, if its document is long enough, and begins a line if that did, so
    that neither gives it away. Columns of `draws`, float `[M, 4]`, decide where
    to split, whether to take other text, its chunk, and where to begin in it.
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


# Independent streams of random numbers.
_WINDOW_ORDER, _CHUNK_ORDER, _EXAMPLE = range(3)


class ChunkBatches(abc.ABC):
    """Batches of chunks of `chunk_length` tokens, each a dictionary.

    `config` has the fields `shuffle_tokens` and `evaluation_examples`.
    """

    def __init__(
        self, config: Any, global_batch_size: int, seed: int, chunk_length: int
    ):
        check_at_least(
            1,
            shuffle_tokens=config.shuffle_tokens,
            evaluation_examples=config.evaluation_examples,
        )
        self.config = config
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._chunk_length = chunk_length

    @abc.abstractmethod
    def _examples(
        self, window: Window, chunks: tf.Tensor, indices: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Makes examples of chunks, int64 `[M]`; their numbers in the run are
        `indices`."""

    def _example_seed(self, index):
        return self._seed(_EXAMPLE, index)

    @tf.autograph.experimental.do_not_convert
    def training(
        self,
        shards: Sequence[Shard],
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless batches, from `first_step` on.

        An epoch leaves out the chunks that do not fill a window's last global
        batch, different ones each time.
        """
        share = Share.of(context, self.global_batch_size)
        paths, num_examples = self._plan(shards)
        if min(num_examples) < self.global_batch_size:
            raise ValueError(
                "`global_batch_size` must be at most the number of examples "
                f"in memory at a time, {min(num_examples)} (see "
                f"shuffle_tokens). Received: {self.global_batch_size}"
            )
        per_epoch = sum(n // self.global_batch_size for n in num_examples)
        batches = tf.constant(num_examples, tf.int64) // self.global_batch_size

        def epoch_windows(epoch):
            """Elements: window, its first step, batches to skip in it."""
            order = tf.random.experimental.stateless_shuffle(
                tf.range(paths.nrows(), dtype=tf.int64),
                seed=self._seed(_WINDOW_ORDER, epoch),
            )
            counts = tf.gather(batches, order)
            starts = epoch * per_epoch + tf.cumsum(counts, exclusive=True)
            skips = tf.clip_by_value(first_step - starts, 0, counts)
            return tf.data.Dataset.from_tensor_slices(
                (order, starts, skips)
            ).filter(lambda number, start, skip: skip < batches[number])

        def load(number, start, skip):
            window = load_window(paths[number], self._chunk_length)
            rows = tf.range(batches[number] * self.global_batch_size)
            rows = tf.reshape(rows, [-1, self.global_batch_size])[skip:]
            return window, start, share.divide(rows)

        return (
            tf.data.Dataset.range(first_step // per_epoch, tf.int64.max)
            .flat_map(epoch_windows)
            .map(load)
            .prefetch(1)
            # No two windows of a run begin at the same step.
            .flat_map(self._window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    @tf.autograph.experimental.do_not_convert
    def evaluation(
        self, shards: Sequence[Shard], context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """The same examples each time, in as many batches on each replica.

        Batches have `index`, too, int64 `[M]`: the example's number, or -1
        for one that fills up the last batch.
        """
        paths, num_examples = self._plan(shards)
        count = min(self.config.evaluation_examples, num_examples[0])
        rows = evaluation_numbers(count, self.global_batch_size, context)
        batches = tf.data.Dataset.from_tensors(paths[0]).flat_map(
            lambda paths: self._window_batches(
                load_window(paths, self._chunk_length), 0, tf.maximum(rows, 0)
            )
        )
        return (
            tf.data.Dataset.zip(
                batches, tf.data.Dataset.from_tensor_slices(rows)
            )
            .map(lambda features, index: {**features, "index": index})
            .prefetch(tf.data.AUTOTUNE)
        )

    def _window_batches(self, window, start, rows):
        """Examples of a window's shuffled chunks at `rows`, `[batches, M]`."""
        order = tf.random.experimental.stateless_shuffle(
            tf.range(window.chunk_starts[-1]),
            seed=self._seed(_CHUNK_ORDER, start),
        )

        def batch(rows):
            indices = start * self.global_batch_size + rows
            return self._examples(window, tf.gather(order, rows), indices)

        return tf.data.Dataset.from_tensor_slices(rows).map(
            batch, num_parallel_calls=tf.data.AUTOTUNE
        )

    def _seed(self, stream, number):
        return tf.random.fold_in(
            tf.constant([self.seed, stream], tf.int64), number
        )

    def _deal(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        """Deals the shards into windows that fit in memory."""
        tokens = sum(int(shard.document_lengths.sum()) for shard in shards)
        count = max(math.ceil(tokens / self.config.shuffle_tokens), 1)
        count = min(count, len(shards))
        return [list(shards[number::count]) for number in range(count)]

    def _plan(
        self, shards: Sequence[Shard]
    ) -> tuple[tf.RaggedTensor, list[int]]:
        """Returns each window's paths `[windows, (shards)]` and examples."""
        paths, num_examples = [], []
        for window in self._deal(shards):
            paths.append([str(shard.path) for shard in window])
            lengths = np.concatenate([x.document_lengths for x in window])
            num_examples.append(int((-(-lengths // self._chunk_length)).sum()))
        return tf.ragged.constant(paths), num_examples
