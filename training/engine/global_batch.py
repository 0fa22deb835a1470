"""How a global batch is divided over workers and their replicas.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import typing
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from training.engine.strategy import replica_batch_size


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


# AutoGraph has nothing to convert in datasets and updates, but would search all
# that they call for seconds before the first update.
@tf.autograph.experimental.do_not_convert
def training_batches(
    read: Callable,
    count: int,
    global_batch_size: int,
    seed: int,
    first_step: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Deals out examples as `shuffled` does, and divides them.

    Args:
        read: Makes the batch of examples, of an int32 tensor `[M]`, their
            numbers.
        count: Integer, how many examples there are.
        global_batch_size: Integer, B.
        seed: Integer, decides the order.
        first_step: Integer, the update to begin with.
        context: The worker that asks, and how many there are.

    Returns:
        A dataset of batches, which this worker's replicas take in turn.

    Raises:
        ValueError: There are fewer examples than one global batch takes, or
            it does not divide over the replicas.
    """
    share = Share.of(context, global_batch_size)

    def divided(_, numbers):
        return tf.reshape(numbers[share.rows], [share.replicas, share.size])

    return (
        shuffled(count, global_batch_size, seed, first_step)
        .map(divided)
        .unbatch()
        .map(read, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
    read: Callable,
    count: int,
    global_batch_size: int,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Deals out each example once, in order, as many batches to each replica.

    Args:
        read: As in `training_batches`, of int64 tensors; returns a dictionary.
        count: Integer, how many examples there are.
        global_batch_size: Integer, B.
        context: The worker that asks, and how many there are.

    Returns:
        A dataset of batches, which this worker's replicas take in turn, with
        `index`, too, int64 `[M]`: the example's number, or -1 where one only
        fills up the last batch.
    """

    def numbered(numbers):
        return {**read(tf.maximum(numbers, 0)), "index": numbers}

    mine = evaluation_numbers(count, global_batch_size, context)
    return (
        tf.data.Dataset.from_tensor_slices(mine)
        .map(numbered, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_numbers(
    count: int, global_batch_size: int, context: tf.distribute.InputContext
) -> np.ndarray:
    """Deals out numbers so that each replica has as many batches.

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
