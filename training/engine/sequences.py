"""What tasks on sequences of tokens share.

Shape letters: M sequences of a batch, T tokens, N examples of all evaluations,
C classes.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_fixedhead.planner import encoder_flops
from keras_fixedhead.progress import progress
from training.engine.task import Task


class SequenceTask(Task):
    """A task whose model reads int tensors `[M, T]`, named in `inputs`."""

    counts = ("tokens", "examples")
    inputs = ("token_ids", "segment_ids", "padding_mask")

    def model_inputs(self, batch: dict) -> dict:
        """Returns the part of a batch that the model reads."""
        return {name: batch[name] for name in self.inputs}

    def totals(self, batch):
        real = tf.cast(batch["padding_mask"], tf.float32)
        return {
            "tokens": tf.reduce_sum(real),
            "examples": tf.cast(tf.shape(real)[0], tf.float32),
        }

    def flops(self, totals):
        # As if all sequences had the average length. Every token of the last
        # block is computed; the head is negligible.
        tokens = totals["tokens"]
        of_a_token = encoder_flops(
            self.model.backbone, tokens / totals["examples"]
        )
        return 3 * tokens * of_a_token

    def attention_inputs(self, batch):
        return self.model, self.model_inputs(batch)


def in_order(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of each example once, in order, as `[N, ...]`.

    `index` in `outputs` has the numbers of the examples, -1 for padding.
    """
    index = outputs["index"]
    order = np.argsort(index, kind="stable")[(index < 0).sum() :]
    return {name: x[order] for name, x in outputs.items() if name != "index"}


def losses_and_hits(
    logits: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns losses in nats, and 1 where the highest logit is the label's.

    `logits` are `[..., C]`, `labels` integers `[...]`; the results are
    `[...]`, in float32 or float64.
    """
    if logits.dtype != tf.float64:
        # bfloat16 is too coarse for a sum of exponentials.
        logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
    return losses, tf.cast(hits, logits.dtype)


def outputs_by_length(
    lengths: Sequence[int],
    compute: Callable[[np.ndarray], dict],
    batch_size: int,
    label: str,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields the numbers of the sequences of each batch, and its outputs.

    `compute` maps numbers of sequences, an int array `[M]`, to `{name: tensor
    [M, ...]}`. The longest sequences come first, so that a batch too large for
    the memory fails at once. `label` stands beside the progress bar.
    """
    if batch_size < 1:
        raise ValueError(
            f"`batch_size` must be positive. Received: {batch_size}"
        )
    order = np.argsort(-np.asarray(lengths), kind="stable")
    with progress(label, len(order)) as advance:
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            outputs = compute(rows)
            yield rows, {name: np.array(x) for name, x in outputs.items()}
            advance(len(rows))
