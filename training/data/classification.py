"""Labelled texts and pairs of texts as batches of tokens.

Shape letters: B examples of a global batch, M examples of one replica,
T tokens.
"""

import tensorflow as tf

from keras_fixedhead import FixedHeadTextClassifierPreprocessor
from training.data.global_batch import evaluation_batches, replica_batches
from training.data.labelled import Labelled
from training.data.texts import of_length


class LabelledBatches:
    """Batches of tokenized, labelled texts for `tf.distribute`.

    Each batch is a dictionary: int32 `[M, T]` of what the preprocessor
    returns (`token_ids`, `padding_mask`, `segment_ids`); `labels`, int32
    `[M]`; in evaluation `index`, int64 `[M]`, the example's position, or -1
    where one only fills up the last batch.

    Args:
        global_batch_size: Integer, B.
        preprocessor: A `FixedHeadTextClassifierPreprocessor`.
        seed: Integer, decides the order.
        packed: Bool, whether batches are as long as their longest text only.
    """

    def __init__(
        self,
        global_batch_size: int,
        preprocessor: FixedHeadTextClassifierPreprocessor,
        seed: int,
        packed: bool = True,
    ):
        self.global_batch_size = global_batch_size
        self.preprocessor = preprocessor
        self.seed = seed
        self.packed = packed

    def training(
        self,
        examples: Labelled,
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
        batches = replica_batches(
            len(examples),
            self.global_batch_size,
            self.seed,
            first_step,
            context,
        )
        return batches.map(
            self._reader(examples), num_parallel_calls=tf.data.AUTOTUNE
        ).prefetch(tf.data.AUTOTUNE)

    def evaluation(
        self, examples: Labelled, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Every example once, in order, in as many batches on each replica."""
        batch = self._reader(examples)

        def numbered(indices):
            return {**batch(tf.maximum(indices, 0)), "index": indices}

        return (
            tf.data.Dataset.from_tensor_slices(
                evaluation_batches(
                    len(examples), self.global_batch_size, context
                )
            )
            .map(numbered, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
        )

    def _reader(self, examples):
        """The function of int tensors `[M]` to the batch of these examples."""
        columns = [tf.constant(examples.first)]
        if examples.second is not None:
            columns.append(tf.constant(examples.second))
        labels = tf.constant(examples.labels)

        def batch(indices):
            features = self.preprocessor.pad_to_longest(
                *(tf.gather(texts, indices) for texts in columns)
            )
            if not self.packed:
                features = of_length(
                    features,
                    self.preprocessor.sequence_length,
                    self.preprocessor.tokenizer.pad_token_id,
                )
            return {**features, "labels": tf.gather(labels, indices)}

        return batch
