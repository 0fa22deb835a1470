"""The interface between a task and the training loop, and base classes.

`training/tasks.py` says what the folder of a fine-tuning task has.

Shape letters: M sequences of a batch, T tokens, N examples of all evaluations,
C classes.
"""

import abc
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from keras_fixedhead import FixedHeadBackbone, FixedHeadTokenizer
from keras_fixedhead.planner import encoder_flops
from keras_fixedhead.progress import progress
from training.engine.configs import (
    FinetuneConfig,
    HeadConfig,
    check,
    check_length,
    check_positive,
)
from training.engine.global_batch import ExampleBatches
from training.engine.model_card import write_card
from training.engine.preset import (
    copy_encoder,
    make_encoder,
    preset_sha256,
    read_start,
    read_tokenizer,
)


class SequenceTask(abc.ABC):
    """What is learned, by a model that reads int tensors `[M, T]`.

    A global batch must depend only on its step and the seed, so that a resumed
    run sees the same batches on any number of devices.
    """

    config: Any
    model: keras.layers.Layer
    metrics: Sequence[str] = ()  # those that `loss` returns
    counts: Sequence[str] = ("tokens", "examples")  # those of `totals`
    inputs: Sequence[str] = ("token_ids", "segment_ids", "padding_mask")
    warnings: Sequence[str] = ()
    _batches: Any
    _training: Any
    _validation: Any

    @property
    @abc.abstractmethod
    def settings(self) -> dict:
        """What decides the result beside model and training, as JSON values."""

    @abc.abstractmethod
    def build(self) -> None:
        """Sets `model`; called in the strategy's scope."""

    def training_dataset(
        self, context: tf.distribute.InputContext, first_step: int
    ) -> tf.data.Dataset:
        """Returns a replica's endless batches, from update `first_step` on."""
        return self._batches.training(self._training, context, first_step)

    def evaluation_dataset(
        self, context: tf.distribute.InputContext
    ) -> tf.data.Dataset:
        """Returns a replica's evaluation batches; each replica has as many."""
        return self._batches.evaluation(self._validation, context)

    def model_inputs(self, batch: dict) -> dict:
        """Returns the part of a batch that the model reads."""
        return {name: batch[name] for name in self.inputs}

    def compute(
        self,
        packed: Callable,
        batch: dict,
        training: bool = False,
        **options: Any,
    ) -> Any:
        """Calls a `..._packed` method of a model with its part of a batch."""
        return packed(
            self.model_inputs(batch),
            training=training,
            fixed_size=not self.config.run.packed,
            **options,
        )

    def totals(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns counts of a replica's batch, which the loop adds up."""
        real = tf.cast(batch["padding_mask"], tf.float32)
        return {
            "tokens": tf.reduce_sum(real),
            "examples": tf.cast(tf.shape(real)[0], tf.float32),
        }

    @abc.abstractmethod
    def loss(
        self, batch: dict, totals: dict[str, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns scalars whose sums are the global batch's loss and `metrics`.

        Called in replica context with a batch or some of its rows, and with the
        `totals` over all replicas.
        """

    def flops(self, totals: dict[str, float]) -> float | None:
        """Returns the floating-point operations of an update, if known."""
        # As if all sequences had the average length. Every token of the last
        # block is computed; the head is negligible.
        tokens = totals["tokens"]
        of_a_token = encoder_flops(
            self.model.backbone, tokens / totals["examples"]
        )
        return 3 * tokens * of_a_token

    @abc.abstractmethod
    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns tensors `[M, ...]` from which `figures` computes metrics."""

    @abc.abstractmethod
    def figures(self, outputs: dict) -> dict[str, float]:
        """Returns the metrics of the NumPy outputs of all replicas' batches."""

    def attention_inputs(self, batch: dict) -> tuple[keras.Model, dict]:
        """Returns the model that attends, and its inputs of a batch."""
        return self.model, self.model_inputs(batch)

    def save(self, folder: pathlib.Path) -> None:
        """Writes the preset."""
        self.model.save_to_preset(str(folder))

    @property
    def counts_of_data(self) -> dict[str, int]:
        """Sizes of the data, for the model card."""
        return {
            "training examples": len(self._training),
            "held-out examples": len(self._validation),
        }

    def write_cards(self, folder: pathlib.Path, replicas: int) -> None:
        """Writes a model card into each preset of what `save` wrote."""
        for file in folder.rglob("config.json"):
            write_card(file.parent, self.config, self.counts_of_data, replicas)

    def check_data(self, error: tf.errors.OpError) -> None:  # noqa: B027
        """Raises an error that names the file, if data caused `error`."""


def in_order(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs by their `index`, `[N, ...]`, without padding's."""
    index = outputs["index"]
    order = np.argsort(index, kind="stable")[(index < 0).sum() :]
    return {name: x[order] for name, x in outputs.items() if name != "index"}


def losses_and_hits(
    logits: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns losses in nats and hits, `[...]`, of logits `[..., C]`."""
    if logits.dtype != tf.float64:
        # bfloat16 is too coarse for a sum of exponentials.
        logits = tf.cast(logits, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    hits = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
    return losses, tf.cast(hits, logits.dtype)


def mean_share(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns what these values add to their mean over `count` values."""
    return tf.reduce_sum(values) / tf.cast(count, values.dtype)


def outputs_of_all(
    packed: Callable,
    inputs: Callable[[np.ndarray], dict],
    lengths: Sequence[int],
    batch_size: int,
    label: str,
) -> Any:
    """Returns the outputs `[N, ...]`, filled up with zeros, of N sequences.

    `inputs` returns the inputs of `packed` for the sequences of some numbers.
    """
    check_positive(batch_size=batch_size)
    compute = tf.function(packed, reduce_retracing=True, autograph=False)
    # The longest first: a batch too large for the memory fails at once.
    order = np.argsort(-np.asarray(lengths), kind="stable")
    found = None
    with progress(label, len(order)) as advance:
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            batch = tf.nest.map_structure(tf.constant, inputs(rows))
            outputs = tf.nest.map_structure(np.asarray, compute(batch))
            found = found or tf.nest.map_structure(
                lambda x: np.zeros((len(order), *x.shape[1:]), x.dtype), outputs
            )
            for name, values in outputs.items():
                found[name][rows, : values.shape[1]] = values
            advance(len(rows))
    return found


class FinetuningTask(SequenceTask):
    """Trains the encoder of a preset (`init`), or a new one, under a head.

    A subclass's `__init__` makes `_preprocessor` and reads `_training` and
    `_validation`, the examples of `batches`.
    """

    part: str  # field of the configuration with the task's options
    # Options left out of `settings`: `data_sha256` covers these files.
    sources: tuple[str, ...] = ()
    batches: type[ExampleBatches]
    _preprocessor: keras_hub.models.Preprocessor

    def __init__(self, config: FinetuneConfig):
        self.config = config
        self._options = getattr(config, self.part)
        if isinstance(self._options, HeadConfig):
            check(
                "from 0 to below 1",
                lambda rate: 0 <= rate < 1,
                head_dropout=self._options.head_dropout,
            )
        self._start, self._model = read_start(config.model)

    @functools.cached_property
    def _batches(self) -> ExampleBatches:  # type: ignore[override]
        training = self.config.training
        return self.batches(
            training.global_batch_size,
            self._preprocessor,
            training.seed,
            packed=self.config.run.packed,
        )

    @property
    @abc.abstractmethod
    def data_sha256(self) -> str | dict[str, str]:
        """The checksum of the data, or one for each part."""

    @property
    def settings(self) -> dict:
        model = dataclasses.asdict(self.config.model)
        init = model.pop("init")
        options = dataclasses.asdict(self._options)
        for name in self.sources:
            del options[name]
        return {
            "model": model,
            "init_sha256": init and preset_sha256(init, "init"),
            self.part: options,
            "data_sha256": self.data_sha256,
        }

    def _digests(self, parts: dict[str, Any]) -> dict[str, str]:
        """Returns the `sha256` of each part, and that of the vocabulary."""
        digests = {name: part.sha256 for name, part in parts.items()}
        if self._options.vocabulary is not None:
            vocabulary = self._options.vocabulary.read_bytes()
            digests["vocabulary"] = hashlib.sha256(vocabulary).hexdigest()
        return digests

    def _check_lengths(self, special_tokens: int, **lengths: int) -> None:
        # `read_start` has set it.
        longest = self._model.max_sequence_length or 0
        check_length(longest, special_tokens, **lengths)

    def _read_tokenizer(self) -> FixedHeadTokenizer:
        """Reads the tokenizer of `init`, or the options' `vocabulary`."""
        options, init = self._options, self._model.init
        if (init is None) != (options.vocabulary is not None):
            raise ValueError(
                "`vocabulary` must be a file without `init`, and None with "
                "it, since the preset has a vocabulary. "
                f"Received: vocabulary={options.vocabulary}, init={init}"
            )
        return read_tokenizer(
            self._start, options.vocabulary, options.lowercase
        )

    def _make_encoder(self, pooler: bool = False) -> FixedHeadBackbone:
        """Copies the encoder of `init`, its pooler on request, or makes one."""
        if self._start is None:
            tokenizer = self._preprocessor.tokenizer
            return make_encoder(self._model, tokenizer.vocabulary_size())
        return copy_encoder(self._start.backbone, self._model, pooler=pooler)
