"""The attention report in TensorBoard, while a model trains."""

import contextlib
import os
import time
from typing import Any

import keras

from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.diagnostics.probe import attention_report
from keras_fixedhead.diagnostics.report import (
    METRICS,
    AttentionReport,
    attention_figure,
    mean,
)
from keras_fixedhead.pictures import encode_png


class AttentionSummaries:
    """Writes attention reports of a model that trains to TensorBoard.

    A report is a curve for each layer and metric, means over the heads; a
    picture of all heads, where Matplotlib is installed; and the seconds that
    it took. TensorBoard must be installed. `log_dir` is the folder of the
    event files; for the other arguments see `attention_report`.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        model: keras.Model,
        inputs: Any,
        batch_size: int = 32,
    ) -> None:
        # TensorBoard's own: it needs no TensorFlow.
        from tensorboard.summary.writer.event_file_writer import (
            EventFileWriter,
        )

        self._probed = model, inputs, batch_size
        self._writer = EventFileWriter(str(log_dir))

    def write(self, step: int) -> AttentionReport:
        """Writes and returns the `AttentionReport` after `step` updates."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        began = time.perf_counter()
        report = attention_report(*self._probed)
        summary = Summary()
        for tag, value in _scalars(report):
            summary.value.add(tag=tag, simple_value=value)
        # Without Matplotlib there are curves alone.
        with contextlib.suppress(ModuleNotFoundError):
            png, width, height = encode_png(attention_figure(report))
            image = Summary.Image(
                encoded_image_string=png,
                width=width,
                height=height,
                colorspace=3,
            )
            summary.value.add(tag="attention", image=image)
        seconds = time.perf_counter() - began
        summary.value.add(tag="attention/seconds", simple_value=seconds)
        self._writer.add_event(
            Event(wall_time=time.time(), step=step, summary=summary)
        )
        self._writer.flush()
        return report

    def close(self) -> None:
        self._writer.close()


def _scalars(report):
    small = sum(head.bottleneck for head in report.heads)
    yield "attention/bottlenecked_heads", small
    for layer in report.layers:
        heads = report.heads_of(layer.layer)
        place = f"layer_{layer.layer:02d}"
        for name in METRICS[:-1]:
            yield f"attention_{name}/{place}", mean(heads, name)
        yield f"attention_condition_number/{place}", layer.condition_number


class AttentionReportCallback(keras.callbacks.Callback):
    """Writes `AttentionSummaries` every N updates of `fit`.

    It writes the first before the first update if the model is built by then,
    and the last after the last update.

    Example:

    ```python
    callback = AttentionReportCallback(some_inputs, "logs/attention")
    model.fit(data, callbacks=[callback])
    ```
    """

    def __init__(
        self,
        inputs: Any,
        log_dir: str | os.PathLike,
        every: int = 1000,
        batch_size: int = 32,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.log_dir = log_dir
        self.every = positive_int("every", every)
        self.batch_size = batch_size

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._summaries = AttentionSummaries(
            self.log_dir, self.model, self.inputs, self.batch_size
        )
        self._step = int(self.model.optimizer.iterations)
        self._written = -1
        self._write()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._epoch_began = self._step

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        before, self._step = self._step, self._epoch_began + batch + 1
        if self._step // self.every > before // self.every:
            self._write()

    def on_train_end(self, logs: dict | None = None) -> None:
        if self._written != self._step:
            self._write()
        self._summaries.close()

    def _write(self):
        # Reading `self.model` returns the weights that JAX's trainer holds.
        if self.model.built:
            self._summaries.write(self._step)
            self._written = self._step
