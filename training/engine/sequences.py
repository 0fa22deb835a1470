"""What tasks whose batches are sequences of tokens have in common.

Shape letters: M sequences of this replica, T tokens, N examples of all
evaluations.
"""

import numpy as np
import tensorflow as tf

from keras_fixedhead.planner import encoder_flops
from training.engine.task import Task


class SequenceTask(Task):
    """A task whose model reads int tensors `[M, T]`, named in `inputs`."""

    counts = ("tokens", "examples")
    inputs = ("token_ids", "segment_ids", "padding_mask")

    def model_inputs(self, batch) -> dict:
        """What of a batch the model reads."""
        return {name: batch[name] for name in self.inputs}

    def totals(self, batch):
        real = tf.cast(batch["padding_mask"], tf.float32)
        return {
            "tokens": tf.reduce_sum(real),
            "examples": tf.cast(tf.shape(real)[0], tf.float32),
        }

    def flops(self, totals):
        # Of sequences as long as they are on average, all of whose tokens are
        # computed; the head is nothing beside it.
        tokens = totals["tokens"]
        of_a_token = encoder_flops(
            self.model.backbone, tokens / totals["examples"]
        )
        return 3 * tokens * of_a_token

    def attention_inputs(self, batch):
        return self.model, self.model_inputs(batch)


def in_order(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of each example once, in the order of `index`.

    Args:
        outputs: Arrays of all evaluations, `index` among them, -1 where an
            example only fills up the last batch.

    Returns:
        Arrays `[N, ...]`, without `index`.
    """
    index = outputs["index"]
    order = np.argsort(index, kind="stable")[(index < 0).sum() :]
    return {name: x[order] for name, x in outputs.items() if name != "index"}
