"""One run of a language model: a cell, a seed and a learning rate.

The library's causal language model as a plain Keras model, in plain `compile`
and `fit`, so that it runs on each backend.
"""

import math
import pathlib
import time
from collections.abc import Callable

import keras
import numpy as np

from keras_fixedhead import FixedHeadBackbone, FixedHeadCausalLM
from keras_fixedhead.diagnostics import attention_report
from keras_fixedhead.files import replaced
from keras_fixedhead.planner import encoder_flops
from training.corpus.stream import Stream
from training.engine.schedule import WarmupDecay
from training.reproduce.cells import Cell, encoder_shape
from training.reproduce.scales import Scale
from training.reproduce.windows import Windows

# Beside the record of a run that is not finished.
CHECKPOINT = "checkpoint.npz"

# Between two checkpoints: what a killed run loses.
_CHECKPOINT_SECONDS = 60
# Between two looks at the loss.
_CHECK_BATCHES = 25
# Sequences of the test whose attention is looked at.
_PROBED = 16
_EVALUATION_BATCH = 64


def train(
    cell: Cell,
    scale: Scale,
    stream: Stream,
    seed: int,
    rate: float,
    split: str,
    folder: pathlib.Path,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> dict | None:
    """Trains, or continues, a run, and measures it.

    Args:
        cell: The shape.
        scale: Lengths and numbers of updates.
        stream: The text.
        seed: Decides the initial weights and the order of the text.
        rate: The learning rate at its peak.
        split: What to measure it on: `tuning` or `test`.
        folder: Of the run. Its checkpoint is there while it is not finished.
        should_stop: Whether to save and leave, asked after each update.
        report: Takes the number of updates made.

    Returns:
        None where `should_stop` said so. Else `parameters`, with the
        embeddings; `flops` of a forward pass for each token, without the
        logits; `nats`, the mean cross entropy of a word piece; of the heads,
        on some sequences of the test, means of the `logit_effective_rank` and
        the `attention_effective_rank`, and the mean of the layers'
        `log_condition_number` (None where one is below full rank); and
        `seconds`, of all processes that had a part in it.

    Raises:
        FloatingPointError: The loss is not finite.
        ValueError: The stream is too short.
    """
    checkpoint = folder / CHECKPOINT
    tokens = stream.splits
    keras.utils.set_random_seed(seed)
    model = _model(cell, scale, stream.vocabulary_size)
    model.compile(
        _optimizer(scale, rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)
    batches = scale.steps * scale.parts
    started = time.monotonic()
    first = 0
    if checkpoint.exists():
        first, seconds = _restore(model, checkpoint)
        started -= seconds
    if first < batches:
        windows = Windows(
            tokens["train"],
            scale.sequence_length,
            scale.batch_size // scale.parts,
            batches,
            first,
            seed,
        )

        def save(model, done):
            seconds = time.monotonic() - started
            _save(model, checkpoint, batches=done, seconds=seconds)

        watch = _Watch(first, scale.parts, should_stop, report, save)
        # The windows are in the order of the seed already.
        model.fit(windows, shuffle=False, callbacks=[watch], verbose=0)
        save(model, watch.done)
        if watch.done < batches:
            return None
    test = Windows(tokens[split], scale.sequence_length, _EVALUATION_BATCH)
    nats = float(model.evaluate(test, verbose=0))
    _check(nats, scale.steps)
    shape = encoder_shape(cell, scale, stream.vocabulary_size)
    return {
        "parameters": model.count_params(),
        "flops": encoder_flops(shape, scale.sequence_length),
        "nats": nats,
        **_attention(model, tokens["test"], scale),
        "seconds": time.monotonic() - started,
    }


def frequency_nats(stream: Stream, split: str) -> float:
    """What the frequencies of the training tokens predict of a split.

    Args:
        stream: The text.
        split: `tuning` or `test`.

    Returns:
        The mean cross entropy of a token, nats. A model that has learned
        nothing else is as good.
    """
    train, other = (
        np.bincount(stream.splits[name], minlength=stream.vocabulary_size)
        for name in ("train", split)
    )
    smooth = train + 1
    return float(-(other * np.log(smooth / smooth.sum())).sum() / other.sum())


def _model(cell, scale, vocabulary_size):
    language_model = FixedHeadCausalLM(
        FixedHeadBackbone(
            vocabulary_size=vocabulary_size,
            max_sequence_length=scale.sequence_length,
            num_segments=1,
            dropout=scale.dropout,
            causal=True,
            dtype=scale.dtype,
            **cell.shape,
        )
    )
    return keras.Model(language_model.input, language_model.output)


def _optimizer(scale, rate):
    # Keras asks it for the rate by the number of the part.
    schedule = WarmupDecay(
        rate,
        scale.warmup_steps * scale.parts,
        scale.steps * scale.parts,
        scale.decay,
    )
    optimizer = keras.optimizers.AdamW(
        schedule,
        weight_decay=scale.weight_decay,
        global_clipnorm=scale.clip_norm,
        gradient_accumulation_steps=scale.parts if scale.parts > 1 else None,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


class _Watch(keras.callbacks.Callback):
    """Looks after each batch whether to go on, and saves now and then."""

    def __init__(self, first, parts, should_stop, report, save):
        super().__init__()
        self.done = first
        self._parts = parts
        self._should_stop = should_stop
        self._report = report
        self._save = save
        self._saved = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        self._report(self.done // self._parts)
        # To read the loss is to wait for it. It is a mean of all so far.
        if not self.done % _CHECK_BATCHES:
            _check(logs["loss"], self.done // self._parts)
        if self._should_stop():
            self.model.stop_training = True
        elif time.monotonic() - self._saved > _CHECKPOINT_SECONDS:
            # Asked for the model, Keras on JAX gives it its weights.
            self._save(self.model, self.done)
            self._saved = time.monotonic()


def _state(model):
    """Weights, states of random generators and of the optimizer."""
    return [*model.variables, *model.optimizer.variables]


def _save(model, checkpoint, **progress):
    arrays = map(keras.ops.convert_to_numpy, _state(model))
    with replaced(checkpoint) as partial, open(partial, "wb") as file:
        np.savez(file, *arrays, **progress)


def _restore(model, checkpoint):
    """Returns how many batches were trained on, and for how many seconds."""
    with np.load(checkpoint) as arrays:
        for number, variable in enumerate(_state(model)):
            variable.assign(arrays[f"arr_{number}"])
        return int(arrays["batches"]), float(arrays["seconds"])


def _check(loss, step):
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is not finite at update {step}")


def _attention(model, token_ids, scale):
    """What the heads do on some sequences of the test."""
    backbone = next(
        layer for layer in model.layers if isinstance(layer, FixedHeadBackbone)
    )
    inputs, _ = Windows(token_ids, scale.sequence_length, _PROBED)[0]
    inputs["segment_ids"] = np.zeros_like(inputs["token_ids"])
    found = attention_report(backbone, inputs)
    conditions = [layer.condition_number for layer in found.layers]
    condition = float(np.mean(np.log(conditions)))
    return {
        **{
            name: float(np.mean([getattr(h, name) for h in found.heads]))
            for name in ("logit_effective_rank", "attention_effective_rank")
        },
        "log_condition_number": condition if math.isfinite(condition) else None,
    }
