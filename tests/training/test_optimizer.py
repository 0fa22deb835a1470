"""The schedule, the decay and the clipping of the optimizer."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.configs import TrainingConfig
from training.optimizer import ReduceThenClip, WarmupDecay, build_optimizer

CONFIG = TrainingConfig(
    steps=100, global_batch_size=3, learning_rate=0.5, warmup_steps=0
)


class ClippedSGD(ReduceThenClip, keras.optimizers.SGD):
    pass


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_schedule_rises_and_falls(decay):
    schedule = WarmupDecay(0.3, warmup_steps=7, total_steps=19, decay=decay)

    def expected(update):  # the number of the update, from 1
        if update <= 7:
            return 0.3 * update / 7
        left = (20 - update) / 13
        return 0.3 * (
            left if decay == "linear" else (1 - math.cos(math.pi * left)) / 2
        )

    np.testing.assert_allclose(
        [float(schedule(step)) for step in range(19)],
        [expected(step + 1) for step in range(19)],
        atol=1e-6,
    )
    assert float(schedule(18)) > 0.0
    assert float(schedule(19)) == float(schedule(23)) == 0.0


def test_schedule_without_warmup_starts_near_the_peak():
    schedule = WarmupDecay(1.0, warmup_steps=0, total_steps=100)
    assert float(schedule(0)) == pytest.approx(100 / 101)


def test_schedule_round_trip():
    schedule = WarmupDecay(0.3, 7, 19, "cosine")
    again = WarmupDecay.from_config(schedule.get_config())
    assert float(again(11)) == float(schedule(11))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"decay": "step"}, "`decay` must be .* Received: 'step'"),
        ({"warmup_steps": 100}, "`warmup_steps` .* Received: 100"),
        ({"warmup_steps": -1}, "`warmup_steps` .* Received: -1"),
    ],
)
def test_bad_values_are_named(change, message):
    config = dataclasses.replace(CONFIG, **change)
    with pytest.raises(ValueError, match=message):
        build_optimizer(config, [keras.Variable(np.ones((2, 3)))])


def test_only_matrices_decay():
    kernel = keras.Variable(np.ones((2, 3)), name="kernel")
    bias = keras.Variable(np.ones(3), name="bias")
    temperature = keras.Variable(1.0, name="temperature")
    variables = [kernel, bias, temperature]
    config = dataclasses.replace(CONFIG, weight_decay=0.1)
    optimizer = build_optimizer(config, variables)
    optimizer.apply([tf.zeros(v.shape) for v in variables], variables)
    rate = 0.5 * 100 / 101
    np.testing.assert_allclose(kernel.numpy(), 1 - 0.1 * rate, rtol=1e-6)
    np.testing.assert_array_equal(bias.numpy(), 1.0)
    np.testing.assert_array_equal(temperature.numpy(), 1.0)


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


def test_small_gradients_are_not_clipped():
    weight = keras.Variable(np.zeros((1, 2)), dtype="float64")
    optimizer = ClippedSGD(learning_rate=1.0, global_clipnorm=10.0)
    optimizer.build([weight])
    optimizer.apply([tf.constant([[3.0, 4.0]], "float64")], [weight])
    np.testing.assert_allclose(weight.numpy(), [[-3.0, -4.0]], rtol=1e-12)
