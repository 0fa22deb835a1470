"""The interface between a task and the training loop."""

import abc
import pathlib
from collections.abc import Sequence

import keras
import tensorflow as tf


class Task(abc.ABC):
    """What is learned.

    `model` is None before `build`. `metrics` names the metrics that `loss`
    returns, `counts` the counts of `totals`. `settings`, JSON values by name,
    decide the result, with the model and its training; `warnings` are
    sentences to print.
    """

    model: keras.layers.Layer | None = None
    metrics: Sequence[str] = ()
    counts: Sequence[str] = ()
    settings: dict = {}
    warnings: Sequence[str] = ()

    @abc.abstractmethod
    def build(self) -> None:
        """Sets `model`; called in the strategy's scope."""

    @abc.abstractmethod
    def training_dataset(
        self, context: tf.distribute.InputContext, first_step: int
    ) -> tf.data.Dataset:
        """Returns endless batches of one replica, from update `first_step` on.

        A global batch must depend only on its step and the seed, so that a
        resumed run sees the same batches on any number of devices.
        """

    def totals(self, batch) -> dict[str, tf.Tensor]:
        """Returns counts of a replica's batch, float scalars.

        The loop adds them up over the global batch, and reports the totals
        `examples` and `tokens` per second.
        """
        return {}

    @abc.abstractmethod
    def loss(
        self, batch, totals: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns shares of the global batch's mean loss and mean `metrics`.

        Called in replica context, with a replica's batch or some of its rows,
        and with the `totals` over all replicas. The shares of all replicas and
        rows, scalars, add up to the means.
        """

    def flops(self, totals: dict[str, float]) -> float | None:
        """Returns the floating-point operations of an update."""
        return None

    @abc.abstractmethod
    def evaluation_dataset(
        self, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Returns a replica's batches of an evaluation, as many on each."""

    @abc.abstractmethod
    def evaluation_step(self, batch) -> dict[str, tf.Tensor]:
        """Returns tensors, examples first, to compute the metrics from."""

    @abc.abstractmethod
    def figures(self, outputs: dict) -> dict[str, float]:
        """Returns the metrics of the NumPy outputs of all replicas' batches."""

    def attention_inputs(self, batch) -> tuple | None:
        """Returns the Keras model that attends, and its inputs.

        `batch` is one of an evaluation. None if nothing attends.
        """
        return None

    @abc.abstractmethod
    def save(self, folder: pathlib.Path) -> None:
        """Writes the preset."""

    def check_data(self, error: tf.errors.OpError) -> None:  # noqa: B027
        """Raises an error that names the file, if data caused `error`."""
