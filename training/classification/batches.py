"""Labelled texts and pairs of texts as batches of tokens."""

from collections.abc import Callable

import tensorflow as tf

from training.corpus.texts import Labelled
from training.engine.global_batch import ExampleBatches, of_length


class LabelledBatches(ExampleBatches):
    """Batches of M texts: `labels`, int32 `[M]`, and the model's inputs.

    These are `token_ids`, `padding_mask` and `segment_ids`, int32 `[M, T]`.
    """

    def reader(self, examples: Labelled) -> Callable:
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
