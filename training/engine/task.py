"""What the loop needs to know about a task."""

import abc
import pathlib

import tensorflow as tf


class Task(abc.ABC):
    """What is learned, as the loop sees it.

    `model` is a Keras model or layer, `None` before `build`; `metrics` are
    the names of what `loss` returns beside the loss, `counts` those of
    `totals`. `settings`, JSON values by name, decide the result beside the
    model and its training; `warnings` are sentences to print.
    """

    model = None
    metrics = ()
    counts = ()
    settings = {}
    warnings = ()

    @abc.abstractmethod
    def build(self):
        """Sets `model`; called in the strategy's scope."""

    @abc.abstractmethod
    def training_dataset(
        self, context: tf.distribute.InputContext, first_step: int
    ) -> tf.data.Dataset:
        """Endless batches of one replica, from update `first_step` on.

        A global batch must depend on its step and the seed alone, so that a
        resumed run, on as many devices or not, sees what it would have seen.
        """

    def totals(self, batch) -> dict:
        """Counts of this replica's batch, float scalars.

        The loop adds them up over the global batch. What is called
        `examples`, `tokens` is reported by the second.
        """
        return {}

    @abc.abstractmethod
    def loss(self, batch, totals) -> tuple:
        """This batch's share of the global batch's mean loss.

        Called in replica context. The batch may be a part of the replica's.

        Args:
            batch: An element of the training dataset, or some rows of it.
            totals: Dictionary, what `totals` adds up to over all replicas.

        Returns:
            A scalar and a dictionary of further scalars to report, named as
            in `metrics`. The shares of all replicas and parts add up to the
            means over the global batch.
        """

    def flops(self, totals: dict) -> float | None:
        """Floating-point operations of an update with such totals."""
        return None

    @abc.abstractmethod
    def evaluation_dataset(
        self, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """The replica's batches of one evaluation, as many on each."""

    @abc.abstractmethod
    def evaluation_step(self, batch) -> dict:
        """Tensors, examples first, from which the figures are computed."""

    @abc.abstractmethod
    def figures(self, outputs: dict) -> dict[str, float]:
        """Figures, from the NumPy outputs of all batches of all replicas."""

    def attention_inputs(self, batch) -> tuple | None:
        """The Keras model that attends and its inputs, of an evaluation batch.

        None where nothing attends.
        """
        return None

    @abc.abstractmethod
    def save(self, folder: pathlib.Path):
        """Writes the preset."""

    def check_data(self, error: tf.errors.OpError):  # noqa: B027
        """Looks whether the data is to blame for an error of TensorFlow.

        Raises:
            OSError, ValueError: It is; names the file.
        """
