"""What one run computes: a language model, or heads fitted to contexts.

Language models are trained by Keras's `fit`, on any backend. For a context, a
single head is trained to attend as a matrix says: a dense random one has logits
of full rank, which smaller heads miss (Theorem 1 of
https://arxiv.org/abs/2002.07028); a one-hot one needs only a few dimensions.

Shape letters: N tokens of a split, B sequences of a batch, T sequence length of
text, n of contexts, H head size.
"""

import math
import pathlib
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_fixedhead import FixedHeadBackbone, FixedHeadCausalLM
from keras_fixedhead.diagnostics import attention_report
from keras_fixedhead.diagnostics.report import mean
from keras_fixedhead.files import replaced
from keras_fixedhead.planner import encoder_flops
from keras_fixedhead.theory import fit_context, lowest_error
from training.corpus.folder import Stream
from training.engine.schedule import WarmupDecay
from training.reproduce.cells import Cell, Scale, encoder_shape
from training.reproduce.plan import Run

# In the folder of a run that is not finished.
CHECKPOINT = "checkpoint.npz"

# The time between checkpoints: what a killed run loses.
_CHECKPOINT_SECONDS = 60
# Batches between two looks at the loss.
_CHECK_BATCHES = 25
# Sequences of the test text on which attention is measured.
_PROBED = 16
_EVALUATION_BATCH = 64

# The share of a one-hot context that is spread over all tokens, since a
# softmax is nowhere 0.
_ELSEWHERE = 0.01
# Standard deviation of a dense context's logits.
_SCALE = 2.0


def train(
    run: Run,
    rate: float,
    scale: Scale,
    stream: Stream,
    folder: pathlib.Path,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> dict | None:
    """Trains a run, or continues it from its checkpoint, and measures it.

    If `should_stop()` after an update, the run is saved in `folder` and the
    result is None. `report` takes the number of updates so far.
    """
    checkpoint = folder / CHECKPOINT
    keras.utils.set_random_seed(run.seed)
    model = _model(run.cell, scale, stream.vocabulary_size)
    model.compile(
        _optimizer(scale, rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() == "jax",
    )
    model.optimizer.build(model.trainable_variables)
    batches = scale.steps * scale.parts
    started = saved = time.monotonic()
    done = 0
    if checkpoint.exists():
        with np.load(checkpoint) as arrays:
            for number, variable in enumerate(_state(model)):
                variable.assign(arrays[f"arr_{number}"])
            done = int(arrays["batches"])
            started -= float(arrays["seconds"])

    def save(model):
        arrays = map(keras.ops.convert_to_numpy, _state(model))
        seconds = time.monotonic() - started
        with replaced(checkpoint) as partial, open(partial, "wb") as file:
            np.savez(file, *arrays, batches=done, seconds=seconds)

    def after_batch(batch, logs):
        nonlocal done, saved
        done += 1
        report(done // scale.parts)
        # Reading the loss, a mean so far, waits for the device.
        if not done % _CHECK_BATCHES:
            _check(logs["loss"], done // scale.parts)
        if should_stop():
            model.stop_training = True
        elif time.monotonic() - saved > _CHECKPOINT_SECONDS:
            # On JAX, a callback's `model` gets its weights when accessed.
            save(watch.model)
            saved = time.monotonic()

    if done < batches:
        size = scale.batch_size // scale.parts
        windows = token_windows(
            stream.splits["train"], scale.sequence_length, least=size
        )
        # Keras's BackupAndRestore would resume at the start of an epoch.
        watch = keras.callbacks.LambdaCallback(on_train_batch_end=after_batch)
        model.fit(
            shuffled_batches(windows, size, done, batches, run.seed),
            steps_per_epoch=batches - done,
            shuffle=False,
            callbacks=[watch],
            verbose=0,
        )
        save(model)
        if done < batches:
            return None
    windows = token_windows(stream.splits[run.split], scale.sequence_length)
    nats = float(
        model.evaluate(
            *examples(windows), batch_size=_EVALUATION_BATCH, verbose=0
        )
    )
    _check(nats, scale.steps)
    shape = encoder_shape(run.cell, scale, stream.vocabulary_size)
    return {
        "parameters": model.count_params(),
        "flops": encoder_flops(shape, scale.sequence_length),
        "nats": nats,
        **_attention(model, stream.splits["test"], scale),
        "seconds": time.monotonic() - started,
    }


def frequency_nats(stream: Stream, split: str) -> float:
    """Mean cross entropy of a split's tokens by their training frequency."""
    train, other = (
        np.bincount(stream.splits[name], minlength=stream.vocabulary_size)
        for name in ("train", split)
    )
    smooth = train + 1
    return float(-(other * np.log(smooth / smooth.sum())).sum() / other.sum())


def token_windows(
    token_ids: np.ndarray, sequence_length: int, least: int = 1
) -> np.ndarray:
    """Windows `[windows, T + 1]` of `[N]`, at least so many.

    Each has the first token of the next one.
    """
    count = (len(token_ids) - 1) // sequence_length
    if count < least:
        raise ValueError(
            f"There must be at least {least} windows of {sequence_length} "
            f"tokens. Received: {len(token_ids)} tokens, {count} windows"
        )
    return np.lib.stride_tricks.sliding_window_view(
        token_ids, sequence_length + 1
    )[::sequence_length]


def examples(windows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs and the next tokens, int32 `[B, T]`."""
    tokens = windows.astype("int32")
    inputs = np.ascontiguousarray(tokens[:, :-1])
    return (
        {"token_ids": inputs, "padding_mask": np.ones_like(inputs)},
        np.ascontiguousarray(tokens[:, 1:]),
    )


def shuffled_batches(
    windows: np.ndarray, batch_size: int, first: int, end: int, seed: int
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yields batches `first` to `end`, each epoch in a new order."""
    per_epoch = len(windows) // batch_size
    order = None
    for number in range(first, end):
        epoch, place = divmod(number, per_epoch)
        if order is None or not place:
            rng = np.random.default_rng([seed, epoch])
            order = rng.permutation(len(windows))
        yield examples(windows[order[place * batch_size :][:batch_size]])


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
    # Keras counts the parts of updates as steps of the schedule.
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


def _state(model):
    """Weights, and states of random generators and of the optimizer."""
    return [*model.variables, *model.optimizer.variables]


def _check(loss, step):
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is not finite at update {step}")


def _attention(model, token_ids, scale):
    """Means over heads or layers, on part of the text."""
    windows = token_windows(token_ids, scale.sequence_length)
    inputs, _ = examples(windows[:_PROBED])
    found = attention_report(model, inputs)
    conditions = [layer.condition_number for layer in found.layers]
    condition = float(np.mean(np.log(conditions)))
    ranks = ("logit_effective_rank", "attention_effective_rank")
    return {
        **{name: mean(found.heads, name) for name in ranks},
        # Infinite below full rank.
        "log_condition_number": condition if math.isfinite(condition) else None,
    }


def draw_context(kind: str, length: int, seed: int) -> np.ndarray:
    """A random float64 context `[n, n]`, whose columns sum to 1."""
    rng = np.random.default_rng(seed)
    if kind == "dense":
        context = np.exp(_SCALE * rng.standard_normal((length, length)))
    else:
        context = np.full((length, length), _ELSEWHERE / length)
        context[rng.permutation(length), np.arange(length)] += 1 - _ELSEWHERE
    return context / context.sum(0)


def divergence(context: np.ndarray, scores: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of columns `[n, n]`, in nats."""
    # Scores may have become 0 in float32.
    scores = np.maximum(scores, np.finfo("float32").tiny)
    return float((context * np.log(context / scores)).sum(0).mean())


def fit(
    cell: Cell,
    scale: Scale,
    seed: int,
    should_stop: Callable[[], bool],
    report: Callable[[int], None],
) -> dict | None:
    """Fits heads of each size H to one context, and measures what they miss.

    `log_error_H` is the error of the centred logits (root of summed squares)
    relative to all of them, `bound_H` the least there can be.
    """
    started = time.monotonic()
    context = draw_context(cell.contexts, scale.context_length, seed)
    log = np.log(context)
    whole = np.linalg.norm(log - log.mean(0))
    metrics = {}
    for number, size in enumerate(scale.context_head_sizes, start=1):
        found = fit_context(context, size, steps=scale.context_steps, seed=seed)
        metrics[f"kl_{size}"] = divergence(context, found.scores)
        metrics[f"log_error_{size}"] = float(found.log_error / whole)
        metrics[f"bound_{size}"] = float(lowest_error(context, size) / whole)
        report(number * scale.context_steps)
        if should_stop():
            return None
    return {**metrics, "seconds": time.monotonic() - started}
