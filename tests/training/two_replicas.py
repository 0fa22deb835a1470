"""Program: one device against two logical ones, as JSON for the tests.

    python -m tests.training.two_replicas FOLDER

Everything is in float64 and without dropout, so that what differs is not
rounding.
"""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from tests.training import tiny
from training.finetune import finetune
from training.optimizer import ReduceThenClip
from training.strategy import get_strategy

TOKENS = np.array([[1, 2, 2], [2, 3, 1], [4, 4, 4], [0, 1, 5]])
TARGETS = np.array([[3.0], [-2.0], [5.0], [1.0]])

RETRIEVAL = {
    "dtype": "float64",
    "dropout": 0.0,
    "crop_document": 0.5,
    "inverse_cloze": 0.5,
    "learn_temperature": True,
    "steps": 4,
}


def clipped(base):
    return type(f"Clipped{base.__name__}", (ReduceThenClip, base), {})


def train(strategy, base):
    """Weights, and the norm of the last gradient, after some updates."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Embedding(7, 3, dtype="float64"),
                keras.layers.GlobalAveragePooling1D(dtype="float64"),
                keras.layers.Dense(1, dtype="float64"),
            ]
        )
        model.build((None, 3))
        optimizer = clipped(base)(learning_rate=0.1, global_clipnorm=0.5)
        optimizer.build(model.trainable_variables)

    def update(tokens, targets):
        with tf.GradientTape() as tape:
            errors = model(tokens) - targets
            loss = tf.reduce_sum(errors**2) / len(TARGETS)
        values = [v.value for v in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, values), model.trainable_variables)

    def share(array):
        size = len(array) // strategy.num_replicas_in_sync
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                array[context.replica_id_in_sync_group * size :][:size]
            )
        )

    step = tf.function(
        lambda tokens, targets: strategy.run(update, (tokens, targets))
    )
    for _ in range(5):
        step(share(TOKENS), share(TARGETS))
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    return weights, float(optimizer.gradient_norm.numpy())


def main(folder):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    strategies = {n: get_strategy(n) for n in ("one_device", "mirrored")}
    report = {"replicas": [s.num_replicas_in_sync for s in strategies.values()]}
    for base in (keras.optimizers.SGD, keras.optimizers.AdamW):
        (one, norm), (two, other_norm) = (
            train(strategy, base) for strategy in strategies.values()
        )
        report[base.__name__] = {
            "difference": np.abs(one - two).max(),
            "norms": [norm, other_norm],
        }
    data = tiny.write_data(folder / "data")
    for name in strategies:
        finetune(tiny.config(data, folder / name, strategy=name, **RETRIEVAL))
        report[name] = tiny.metrics(folder / name)
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
