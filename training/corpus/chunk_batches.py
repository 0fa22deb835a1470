"""Batches of chunks of documents, in an order that can be made again.

Everything random is a function of the seed and of the example's number, so a
run can start at any update and see the batches it would have seen there, on
any number of replicas.

An epoch goes through the corpus once; each chunk of a document is one example.
Chunks are shuffled over what fits into memory: the shards are dealt out into
windows, and an epoch takes the windows, and the chunks in each, in a new order.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import abc
import math
import typing
from collections.abc import Sequence

import tensorflow as tf

from training.corpus.chunks import Window, load_window, num_chunks
from training.corpus.tokenized import Shard
from training.engine.global_batch import Share, evaluation_numbers

# What the streams of random numbers are for, so that none is used twice.
_WINDOW_ORDER, _CHUNK_ORDER, _EXAMPLE = range(3)


class ChunkBatches(abc.ABC):
    """Batches for `tf.distribute`, each a dictionary of tensors.

    Args:
        global_batch_size: Integer, B.
        seed: Integer, decides the order, and what is drawn for an example.
        chunk_length: Integer, tokens of a chunk at most.
        shuffle_tokens: Integer, tokens in memory at a time.
        evaluation_examples: Integer, examples of an evaluation.

    Raises:
        ValueError: `shuffle_tokens` or `evaluation_examples` is not positive.
    """

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
        """Examples of some chunks, in a graph of `tf.data`.

        Args:
            window: Holds the chunks.
            chunks: int64 tensor `[M]`, which.
            indices: int64 tensor `[M]`, the examples' numbers in the run.
        """

    def _example_seed(self, index):
        """What an example, by its number in the run, may draw from."""
        return self._seed(_EXAMPLE, index)

    @tf.autograph.experimental.do_not_convert
    def training(
        self,
        shards: Sequence[Shard],
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless batches, from `first_step` on.

        What is left over of a window after its last global batch is left out
        of this epoch, another part each time.

        Raises:
            ValueError: A window of shards does not give one global batch, or
                that does not divide over the replicas.
        """
        share = Share.of(context, self.global_batch_size)
        windows = self._plan(shards)
        batches = [
            chunks // self.global_batch_size for chunks in windows.chunks
        ]
        if not min(batches):
            raise ValueError(
                "`global_batch_size` must be at most the number of examples "
                f"in memory at a time, {min(windows.chunks)} (see "
                f"shuffle_tokens). Received: {self.global_batch_size}"
            )
        per_epoch = sum(batches)
        batches = tf.constant(batches, tf.int64)

        def epoch_windows(epoch):
            """Elements: window, its first step, its batches made before."""
            order = tf.random.experimental.stateless_shuffle(
                tf.range(windows.paths.nrows(), dtype=tf.int64),
                seed=self._seed(_WINDOW_ORDER, epoch),
            )
            counts = tf.gather(batches, order)
            starts = epoch * per_epoch + tf.cumsum(counts, exclusive=True)
            skips = tf.clip_by_value(first_step - starts, 0, counts)
            return tf.data.Dataset.from_tensor_slices(
                (order, starts, skips)
            ).filter(lambda number, start, skip: skip < batches[number])

        def window_batches(window, number, start, skip):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(window.chunk_starts[-1]),
                # No two windows of a run begin at one step.
                seed=self._seed(_CHUNK_ORDER, start),
            )

            def batch(number):
                # Batches of a worker's replicas come in turn.
                step, replica = (
                    number // share.replicas,
                    number % share.replicas,
                )
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
            .map(
                lambda number, *steps: (
                    load_window(windows.paths[number], self._chunk_length),
                    number,
                    *steps,
                )
            )
            .prefetch(1)
            .flat_map(window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    @tf.autograph.experimental.do_not_convert
    def evaluation(
        self, shards: Sequence[Shard], context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """The same examples each time, in as many batches on each replica.

        Batches hold `index`, too, int64 `[M]`: the example's number, or -1
        where one only fills up the last batch.

        Raises:
            ValueError: The global batch does not divide over the replicas.
        """
        windows = self._plan(shards)
        mine = evaluation_numbers(
            min(self._evaluation_examples, windows.chunks[0]),
            self.global_batch_size,
            context,
        )

        def window_batches(window):
            order = tf.random.experimental.stateless_shuffle(
                tf.range(window.chunk_starts[-1]),
                seed=self._seed(_CHUNK_ORDER, 0),
            )

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
            .map(
                lambda number: load_window(
                    windows.paths[number], self._chunk_length
                )
            )
            .flat_map(window_batches)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _seed(self, stream, number):
        """Seed of one of the streams, int32 or int64 `[2]`."""
        return tf.random.fold_in(
            tf.constant([self.seed, stream], tf.int64), number
        )

    def _deal(self, shards):
        """Deals the shards out into windows that fit into memory.

        Returns:
            List of the windows' lists of shards.
        """
        tokens = sum(int(shard.document_lengths.sum()) for shard in shards)
        count = min(
            max(math.ceil(tokens / self._shuffle_tokens), 1), len(shards)
        )
        return [shards[number::count] for number in range(count)]

    def _plan(self, shards):
        dealt = self._deal(shards)
        return _Windows(
            tf.ragged.constant(
                [[str(shard.path) for shard in window] for window in dealt]
            ),
            [
                sum(
                    int(
                        num_chunks(
                            shard.document_lengths, self._chunk_length
                        ).sum()
                    )
                    for shard in window
                )
                for window in dealt
            ],
        )


class _Windows(typing.NamedTuple):
    """Which shards are in memory together.

    Attributes:
        paths: Ragged string tensor `[windows, (shards)]`.
        chunks: List of the windows' numbers of chunks.
    """

    paths: tf.RaggedTensor
    chunks: list[int]
