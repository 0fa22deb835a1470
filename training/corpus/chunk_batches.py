"""Batches of chunks of documents, in an order that can be reproduced.

All randomness is a function of the seed and the example's number, so a run can
start at any update and see the batches it would have seen there, on any number
of replicas.

An epoch goes through the corpus once; each chunk of a document is one example.
The shards are dealt into windows that fit in memory, and each epoch shuffles
the windows and the chunks in each.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import abc
import math
from collections.abc import Sequence

import tensorflow as tf

from training.corpus.chunks import Window, load_window, num_chunks
from training.corpus.tokenized import Shard
from training.engine.global_batch import Share, evaluation_numbers

# Independent streams of random numbers.
_WINDOW_ORDER, _CHUNK_ORDER, _EXAMPLE = range(3)


class ChunkBatches(abc.ABC):
    """Batches of chunks of `chunk_length` tokens, each a dictionary."""

    def __init__(
        self,
        global_batch_size: int,
        seed: int,
        chunk_length: int,
        shuffle_tokens: int,
        evaluation_examples: int,
    ):
        for name, value in {
            "shuffle_tokens": shuffle_tokens,
            "evaluation_examples": evaluation_examples,
        }.items():
            if value < 1:
                raise ValueError(
                    f"`{name}` must be at least 1. Received: {value}"
                )
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._chunk_length = chunk_length
        self._shuffle_tokens = shuffle_tokens
        self._evaluation_examples = evaluation_examples

    @abc.abstractmethod
    def _examples(
        self, window: Window, chunks: tf.Tensor, indices: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Makes examples of chunks, int64 `[M]`, in a graph of `tf.data`.

        `indices`, int64 `[M]`, are the examples' numbers in the run.
        """

    def _example_seed(self, index):
        """The seed of an example, by its number in the run."""
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
        batches = [count // self.global_batch_size for count in num_examples]
        if not min(batches):
            raise ValueError(
                "`global_batch_size` must be at most the number of examples "
                f"in memory at a time, {min(num_examples)} (see "
                f"shuffle_tokens). Received: {self.global_batch_size}"
            )
        per_epoch = sum(batches)
        batches = tf.constant(batches, tf.int64)

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
            return window, number, start, skip

        def window_batches(window, number, start, skip):
            # No two windows of a run begin at the same step.
            order = self._chunk_order(window, start)

            def batch(number):
                # Batches of a worker's replicas take turns.
                step = number // share.replicas
                replica = number % share.replicas
                rows = (
                    share.first_row
                    + replica * share.size
                    + tf.range(share.size, dtype=tf.int64)
                )
                chunks = order[step * self.global_batch_size :]
                return self._examples(
                    window,
                    tf.gather(chunks, rows),
                    (start + step) * self.global_batch_size + rows,
                )

            return tf.data.Dataset.range(
                skip * share.replicas, batches[number] * share.replicas
            ).map(batch, num_parallel_calls=tf.data.AUTOTUNE)

        return (
            tf.data.Dataset.range(first_step // per_epoch, tf.int64.max)
            .flat_map(epoch_windows)
            .map(load)
            .prefetch(1)
            .flat_map(window_batches)
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
        mine = evaluation_numbers(
            min(self._evaluation_examples, num_examples[0]),
            self.global_batch_size,
            context,
        )

        def load(number):
            return load_window(paths[number], self._chunk_length)

        def window_batches(window):
            order = self._chunk_order(window, 0)

            def batch(indices):
                index = tf.maximum(indices, 0)
                features = self._examples(
                    window, tf.gather(order, index), index
                )
                return features | {"index": indices}

            return tf.data.Dataset.from_tensor_slices(mine).map(
                batch, num_parallel_calls=tf.data.AUTOTUNE
            )

        return (
            tf.data.Dataset.range(1)
            .map(load)
            .flat_map(window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _chunk_order(self, window, start):
        return tf.random.experimental.stateless_shuffle(
            tf.range(window.chunk_starts[-1]),
            seed=self._seed(_CHUNK_ORDER, start),
        )

    def _seed(self, stream, number):
        return tf.random.fold_in(
            tf.constant([self.seed, stream], tf.int64), number
        )

    def _deal(self, shards: Sequence[Shard]) -> list[list[Shard]]:
        """Deals the shards into windows that fit in memory."""
        tokens = sum(int(shard.document_lengths.sum()) for shard in shards)
        count = max(math.ceil(tokens / self._shuffle_tokens), 1)
        count = min(count, len(shards))
        return [shards[number::count] for number in range(count)]

    def _plan(self, shards) -> tuple[tf.RaggedTensor, list[int]]:
        """Returns each window's paths `[windows, (shards)]` and examples."""
        windows = self._deal(shards)

        def chunks(shard):
            counts = num_chunks(shard.document_lengths, self._chunk_length)
            return int(counts.sum())

        paths = [[str(shard.path) for shard in window] for window in windows]
        num_examples = [sum(map(chunks, window)) for window in windows]
        return tf.ragged.constant(paths), num_examples
