"""Divides a global batch over workers and their replicas.

Shape letters: B examples of a global batch, M examples of one replica.
"""

import abc
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

import keras_hub
import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedderPreprocessor
from training.engine.strategy import replica_batch_size


class Share(typing.NamedTuple):
    """The `rows` of a global batch that a worker's replicas divide."""

    replicas: int
    size: int  # M, the rows of each replica
    rows: slice

    @classmethod
    def of(
        cls, context: tf.distribute.InputContext, global_batch_size: int
    ) -> "Share":
        size = replica_batch_size(
            global_batch_size, context.num_replicas_in_sync
        )
        replicas = context.num_replicas_in_sync // context.num_input_pipelines
        first = context.input_pipeline_id * replicas * size
        return cls(replicas, size, slice(first, first + replicas * size))

    def divide(self, batches: tf.Tensor) -> tf.Tensor:
        """Divides `[batches, B]` into the replicas' batches, `[..., M]`."""
        return tf.reshape(batches[:, self.rows], [-1, self.size])


def shuffled(
    count: int, global_batch_size: int, seed: int, first_step: int
) -> tf.data.Dataset:
    """Returns endless pairs: an update's number, and examples', int32 `[B]`."""
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
        return tf.data.Dataset.from_tensor_slices(order).batch(
            global_batch_size, drop_remainder=True
        )

    return (
        tf.data.Dataset.range(first_step // per_epoch, tf.int64.max)
        .flat_map(epoch_batches)
        .skip(first_step % per_epoch)
        .enumerate(start=first_step)
    )


def evaluation_numbers(
    count: int, global_batch_size: int, context: tf.distribute.InputContext
) -> tf.Tensor:
    """Returns the numbers of a worker's examples, int64 `[batches, M]`.

    -1 pads the last ones, so that all replicas have as many batches.
    """
    numbers = np.pad(
        np.arange(count), (0, -count % global_batch_size), constant_values=-1
    )
    batches = numbers.reshape([-1, global_batch_size])
    return Share.of(context, global_batch_size).divide(batches)


def scaled(draws: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Maps uniform draws from `[0, 1)` to integers in `[0, counts)`."""
    return tf.minimum(
        tf.cast(draws * tf.cast(counts, draws.dtype), counts.dtype), counts - 1
    )


@dataclasses.dataclass
class ExampleBatches(abc.ABC):
    """Batches of examples; `packed` ones are as long as their longest one."""

    global_batch_size: int
    preprocessor: keras_hub.models.Preprocessor
    seed: int
    packed: bool = True

    @abc.abstractmethod
    def reader(self, examples: Any) -> Callable:
        """Returns a function from numbers of examples, `[M]`, to a batch."""

    # AutoGraph has nothing to convert in datasets, but takes seconds to search
    # all functions that they call.
    @tf.autograph.experimental.do_not_convert
    def training(
        self,
        examples: Any,
        context: tf.distribute.InputContext,
        first_step: int,
    ) -> tf.data.Dataset:
        """Endless shuffled batches, which a worker's replicas take in turn."""
        share = Share.of(context, self.global_batch_size)

        return (
            shuffled(
                len(examples), self.global_batch_size, self.seed, first_step
            )
            .map(lambda step, numbers: share.divide(numbers[None]))
            .unbatch()
            .map(self.reader(examples), num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    @tf.autograph.experimental.do_not_convert
    def evaluation(
        self, examples: Any, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Every example once, in order; its `index` is -1 for padding."""
        read = self.reader(examples)

        def numbered(numbers):
            return {**read(tf.maximum(numbers, 0)), "index": numbers}

        mine = evaluation_numbers(
            len(examples), self.global_batch_size, context
        )
        return (
            tf.data.Dataset.from_tensor_slices(mine)
            .map(numbered, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )


def tokenized(
    preprocessor: FixedHeadTextEmbedderPreprocessor,
    text: tf.Tensor,
    prompt: str | None,
    sequence_length: int,
    fixed_size: bool,
) -> dict[str, tf.Tensor]:
    """Tokenizes strings `[B]` into int32 `[B, T]`; T is that of the longest
    text or, with `fixed_size`, `sequence_length`."""
    features = preprocessor.pad_to_longest(
        text, prompt=prompt, sequence_length=sequence_length
    )
    if not fixed_size:
        return features
    return of_length(
        features, sequence_length, preprocessor.tokenizer.pad_token_id
    )


def gatherer(rows: Sequence[Sequence[int]], pad: int = 0) -> Callable:
    """Returns a function from rows' numbers to `[M, T]`, the rows, and a mask.

    `pad` fills up the rows.
    """
    values = np.concatenate(rows).astype(np.int32)
    ragged = tf.RaggedTensor.from_row_lengths(values, list(map(len, rows)))

    def gather(numbers):
        chosen = tf.gather(ragged, numbers)
        return chosen.to_tensor(pad), tf.ones_like(chosen).to_tensor()

    return gather


def of_length(
    features: dict[str, tf.Tensor], sequence_length: int, pad_token_id: int
) -> dict[str, tf.Tensor]:
    """Pads int32 tensors `[B, T]` to the static `[B, sequence_length]`."""
    missing = sequence_length - tf.shape(features["token_ids"])[1]
    padded = {}
    for name, values in features.items():
        fill = pad_token_id if name == "token_ids" else 0
        values = tf.pad(values, [[0, 0], [0, missing]], constant_values=fill)
        padded[name] = tf.ensure_shape(values, [None, sequence_length])
    return padded
