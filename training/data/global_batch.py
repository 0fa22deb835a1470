"""How a global batch is divided over workers and their replicas.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import typing

import numpy as np
import tensorflow as tf

from training.strategy import replica_batch_size


class Share(typing.NamedTuple):
    """What one worker takes of every global batch.

    Attributes:
        replicas: Integer, its replicas. Their batches come in turn.
        size: Integer, M.
        first_row: Integer, where in the global batch its part begins.
    """

    replicas: int
    size: int
    first_row: int

    @classmethod
    def of(
        cls, context: tf.distribute.InputContext, global_batch_size: int
    ) -> "Share":
        """The share of the worker that asks.

        Raises:
            ValueError: The batch does not divide over the replicas.
        """
        size = replica_batch_size(
            global_batch_size, context.num_replicas_in_sync
        )
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        return cls(replicas, size, context.input_pipeline_id * replicas * size)

    @property
    def rows(self) -> slice:
        """Its part of the global batch."""
        return slice(self.first_row, self.first_row + self.replicas * self.size)


def shuffled(
    count: int, global_batch_size: int, seed: int, first_step: int
) -> tf.data.Dataset:
    """Deals out examples at random, epoch after epoch, without end.

    Each epoch leaves out what does not fill a global batch, another part each
    time.

    Returns:
        A dataset, from update `first_step` on, of updates' numbers and of
        int32 tensors `[B]`, examples from 0 to `count`.

    Raises:
        ValueError: There are fewer examples than one global batch takes.
    """
    per_epoch = count // global_batch_size
    if not per_epoch:
        raise ValueError(
            "`global_batch_size` must be at most the number of training "
            f"examples, {count}. Received: {global_batch_size}"
        )

    def epoch_batches(epoch):
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count), seed=[seed, epoch]
        )
        return tf.data.Dataset.from_tensor_slices(
            tf.reshape(
                order[: per_epoch * global_batch_size],
                [per_epoch, global_batch_size],
            )
        )

    return (
        tf.data.Dataset.range(first_step // per_epoch, tf.int64.max)
        .flat_map(epoch_batches)
        .skip(first_step % per_epoch)
        .enumerate(start=first_step)
    )


def replica_batches(
    count: int,
    global_batch_size: int,
    seed: int,
    first_step: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Deals out examples as `shuffled` does, and divides them.

    Returns:
        A dataset, from update `first_step` on, of int32 tensors `[M]`, what
        this worker's replicas take in turn.

    Raises:
        ValueError: There are fewer examples than one global batch takes, or
            it does not divide over the replicas.
    """
    share = Share.of(context, global_batch_size)

    def divided(_, indices):
        return tf.reshape(indices[share.rows], [share.replicas, share.size])

    batches = shuffled(count, global_batch_size, seed, first_step)
    return batches.map(divided).unbatch()


def evaluation_batches(
    count: int, global_batch_size: int, context: tf.distribute.InputContext
) -> np.ndarray:
    """Deals out examples so that each replica has as many batches.

    Returns:
        int64 array `[batches, M]`, what this worker's replicas take in turn:
        numbers from 0 on, each on one replica, and -1 where one only fills up
        the last batch.
    """
    share = Share.of(context, global_batch_size)
    numbers = np.full(
        -(-count // global_batch_size) * global_batch_size, -1, np.int64
    )
    numbers[:count] = np.arange(count)
    mine = numbers.reshape([-1, global_batch_size])[:, share.rows]
    return mine.reshape([-1, share.size])


def scaled(draws, counts):
    """Uniform draws from `[0, 1)` as integers in `[0, counts)`."""
    return tf.minimum(
        tf.cast(draws * tf.cast(counts, draws.dtype), counts.dtype), counts - 1
    )
