"""What the attention heads do while a task is learned, in TensorBoard."""

import pathlib

import tensorflow as tf

from keras_fixedhead.diagnostics import AttentionSummaries
from training.engine.task import Task


def attention_summaries(
    task: Task, folder: pathlib.Path, sequences: int
) -> AttentionSummaries:
    """Reports on the same sequences of held-out data, again and again.

    Args:
        task: A task whose model is built.
        folder: Where the event files go.
        sequences: How many to look at, at most the first batch of an
            evaluation.

    Raises:
        ValueError: `sequences` is not positive, or the task has no attention.
    """
    if sequences < 1:
        raise ValueError(
            f"`attention_sequences` must be positive. Received: {sequences}"
        )
    dataset = task.evaluation_dataset(tf.distribute.InputContext())
    # Batches are padded to lengths of their own: rows of the first alone.
    found = task.attention_inputs(next(iter(dataset)))
    if found is None:
        raise ValueError(
            "`attention_interval` is for tasks whose model attends. "
            f"Received: it, for a {type(task).__name__}"
        )
    model, inputs = found
    inputs = tf.nest.map_structure(lambda x: x[:sequences], inputs)
    return AttentionSummaries(folder, model, inputs)
