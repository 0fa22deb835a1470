"""The schedule, the decay and the clipping of the optimizer."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.engine.configs import TrainingConfig
from training.engine.optimizer import ClippedSGD, build_optimizer
from training.engine.schedule import WarmupDecay

CONFIG = TrainingConfig(
    steps=100, global_batch_size=3, learning_rate=0.5, warmup_steps=0
)


@pytest.mark.parametrize("warmup", [0, 7])
@pytest.mark.parametrize("decay", ["linear", "cosine", "rsqrt"])
def test_schedule_rises_and_falls(decay, warmup):
    schedule = WarmupDecay(0.3, warmup, total_steps=19, decay=decay)

    def expected(update):  # the number of the update, from 1
        if update <= warmup:
            return 0.3 * update / warmup
        left = max(0, (20 - update) / (20 - warmup))
        falls = {
            "linear": left,
            "cosine": (1 - math.cos(math.pi * left)) / 2,
            "rsqrt": (max(warmup, 1) / update) ** 0.5,
        }
        return 0.3 * falls[decay]

    np.testing.assert_allclose(
        [float(schedule(step)) for step in range(23)],
        [expected(step + 1) for step in range(23)],
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"warmup_steps": 100}, "`warmup_steps` .* Received: 100"),
        ({"learning_rate": -0.1}, "`learning_rate` .*: -0.1"),
        ({"beta_2": 1.1}, "`beta_2` .* Received: 1.1"),
        ({"clip_norm": 0.0}, "`clip_norm` .* Received: 0.0"),
    ],
)
def test_bad_values_are_named(change, message):
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ValueError, match=message):
        build_optimizer(config, [keras.Variable(np.ones((2, 3)))])


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_updates_by_hand(name):
    config = TrainingConfig(
        optimizer=name,
        steps=5,
        global_batch_size=3,
        learning_rate=0.3,
        warmup_steps=2,
        weight_decay=0.05,
        beta_1=0.7,
        beta_2=0.8,
        epsilon=0.1,  # so large that the gradients' scale matters
        clip_norm=1.5,
    )
    rng = np.random.default_rng(11)
    # A kernel, a bias and a temperature.
    weights = [np.array(rng.normal(size=s)) for s in [(2, 3), (3,), ()]]
    variables = [keras.Variable(w, dtype="float64") for w in weights]
    optimizer = build_optimizer(config, variables)
    first = [np.zeros(w.shape) for w in weights]
    second = [np.zeros(w.shape) for w in weights]
    for update, scale in [(1, 5.0), (2, 0.1), (3, 2.0)]:
        gradients = [scale * rng.normal(size=w.shape) for w in weights]
        optimizer.apply([tf.constant(g) for g in gradients], variables)

        norm = np.sqrt(sum(np.sum(g**2) for g in gradients))
        assert (norm > 1.5) == (scale > 1)
        rate = 0.3 * {1: 1 / 2, 2: 1.0, 3: 3 / 4}[update]
        for i, gradient in enumerate(gradients):
            step = gradient * min(1.0, 1.5 / norm)
            if name != "sgd":
                first[i] = 0.7 * first[i] + 0.3 * step
                second[i] = 0.8 * second[i] + 0.2 * step**2
                corrected = 1 - 0.8**update
                # Keras's Adam adds it before the correction.
                epsilon = 0.1 / (np.sqrt(corrected) if name == "adamw" else 1)
                step = first[i] / (1 - 0.7**update)
                step /= np.sqrt(second[i] / corrected) + epsilon
            if weights[i].ndim > 1:
                weights[i] -= rate * 0.05 * weights[i]
            if name == "lamb":
                step *= np.linalg.norm(weights[i]) / np.linalg.norm(step)
            weights[i] -= rate * step
            np.testing.assert_allclose(
                variables[i].numpy(), weights[i], rtol=1e-6, atol=1e-8
            )


def test_rows_of_repeated_tokens_are_added_before_the_norm():
    table = keras.Variable(np.zeros((5, 2)), dtype="float64")
    optimizer = ClippedSGD(learning_rate=1.0, global_clipnorm=1.0)
    optimizer.build([table])
    rows = tf.IndexedSlices(
        tf.constant([[3.0, 0.0], [1.0, 0.0], [0.0, 3.0]], "float64"),
        tf.constant([1, 1, 4]),
        tf.constant([5, 2]),
    )
    optimizer.apply([rows], [table])
    dense = np.zeros((5, 2))
    dense[1] = [4.0, 0.0]
    dense[4] = [0.0, 3.0]
    assert float(optimizer.gradient_norm.numpy()) == 5.0
    np.testing.assert_allclose(table.numpy(), -dense / 5.0, rtol=1e-12)
