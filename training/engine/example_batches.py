"""Examples that are held in memory as batches for `tf.distribute`.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import abc
from collections.abc import Callable, Sized

import tensorflow as tf

from training.engine.global_batch import evaluation_batches, training_batches


class ExampleBatches(abc.ABC):
    """Batches of examples that have numbers, each a dictionary of tensors.

    In evaluation each has `index`, too, int64 `[M]`: the example's number, or
    -1 where one only fills up the last batch.

    Args:
        global_batch_size: Integer, B.
        preprocessor: What makes token ids, and says what the longest sequence
            is and what pads.
        seed: Integer, decides the order.
        packed: Bool, whether batches are as long as their longest sequence
            only.
    """

    def __init__(
        self,
        global_batch_size: int,
        preprocessor,
        seed: int,
        packed: bool = True,
    ):
        self.global_batch_size = global_batch_size
        self.preprocessor = preprocessor
        self.seed = seed
        self.packed = packed

    @abc.abstractmethod
    def reader(self, examples) -> Callable:
        """A function from numbers of examples, `[M]`, to their batch."""

    def training(
        self,
        examples: Sized,
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless shuffled batches, from `first_step` on.

        Each epoch leaves out what does not fill a global batch, another part
        each time.

        Raises:
            ValueError: There are fewer examples than one global batch takes,
                or it does not divide over the replicas.
        """
        return training_batches(
            self.reader(examples),
            len(examples),
            self.global_batch_size,
            self.seed,
            first_step,
            context,
        )

    def evaluation(
        self, examples: Sized, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Every example once, in order, in as many batches on each replica."""
        return evaluation_batches(
            self.reader(examples),
            len(examples),
            self.global_batch_size,
            context,
        )
