"""Program: the same runs on one device and on two logical ones.

    python -m tests.training.engine.two_replicas FOLDER RUN...

A run is retrieval, classification, distillation, language_model, accumulated,
dropped or an optimizer's name.
What is compared is in float64 and without dropout, so that what differs is
not rounding.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from tests.training import tiny
from tests.training.engine.test_loop import Line, run
from training.distill import train as distill
from training.engine.strategy import draw_for_each_replica, get_strategy
from training.finetune import train as finetune
from training.language_model import train as language_model
from training.pretrain import train as pretrain

_EXACT = {"dtype": "float64", "dropout": 0.0, "checkpoint_interval": 50}

RETRIEVAL = _EXACT | {
    "crop_document": 0.5,
    "inverse_cloze": 0.5,
    "learn_temperature": True,
    "hard_negatives": 2,
    "matryoshka_dims": (7,),
    "steps": 4,
}

DISTILLATION = _EXACT | {
    "attention_weight": 1.0,
    "relation_heads": 3,
    "steps": 4,
    "optimizer": "sgd",
    "learning_rate": 0.1,
}

CLASSIFICATION = _EXACT | {
    "head_dropout": 0.0,
    "steps": 6,
    "optimizer": "sgd",
    "learning_rate": 0.1,
}

LANGUAGE_MODEL = _EXACT | {
    "steps": 4,
    "optimizer": "sgd",
    "learning_rate": 0.5,
    "decay": "rsqrt",
}

# Gradients of these runs have norms over 1.
PRETRAINING = _EXACT | {
    "steps": 50,
    "clip_norm": 0.1,
    "log_interval": 10,
    "evaluation_interval": 50,
}

# Reports of attention have no say in what is learned, wherever it is.
REPORTS = {"attention_interval": 50, "attention_sequences": 2}

# Adam hides a factor on the gradients, gradient descent shows it.
OPTIMIZERS = {
    "adamw": {"optimizer": "adamw", "learning_rate": 0.01},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.5},
}


class DroppedLine(Line):
    """Reports which part of the activations one of two replicas drops."""

    metrics = ("dropped_by_one",)

    def loss(self, batch, totals):
        dropout, dense = self.model.layers
        dropped = dropout(tf.ones([1, 97]), training=True) == 0.0
        replicas = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.cast(dropped, tf.float32)
        )
        share = tf.reduce_mean(tf.cast(replicas == 1.0, tf.float32)) / 2.0
        return tf.reduce_sum(dense(batch)), {"dropped_by_one": share}


def weights(workdir):
    """The model's variables in the last checkpoint of a run, in order."""
    latest = tf.train.latest_checkpoint(workdir / "checkpoints")
    reader = tf.train.load_checkpoint(latest)
    return [
        reader.get_tensor(name)
        for name, dtype in sorted(reader.get_variable_to_dtype_map().items())
        if name.startswith("model/") and dtype.is_floating
    ]


def difference(workdir, other):
    """The largest difference between the weights of two runs."""
    return max(
        np.abs(a - b).max()
        for a, b in zip(weights(workdir), weights(other), strict=True)
    )


def dropped(strategy):
    """What two calls of a layer drop on each replica, `[2, replicas, 97]`."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dropout(0.5)])
        model.build((None, 97))
    draw_for_each_replica(model)

    @tf.function
    def call():
        kept = strategy.run(lambda: model(tf.ones([1, 97]), training=True))
        return tf.concat(strategy.experimental_local_results(kept), axis=0)

    return np.stack([call().numpy() == 0.0 for _ in range(2)])


def main(folder, names):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    for name in names:
        _RUNS.get(name, _pretrain)(folder, name)


def _strategies(folder, name):
    """For each strategy the folder of a run, and arguments that differ."""
    for strategy, replicas in {"one_device": 1, "mirrored": 2}.items():
        if get_strategy(strategy).num_replicas_in_sync != replicas:
            sys.exit(f"{strategy} has not {replicas} replicas")
        reports = REPORTS if replicas == 2 else {}
        yield folder / strategy / name, {"strategy": strategy, **reports}


def _retrieval(folder, name):
    pairs = tiny.write_pairs(folder / "pairs")
    for workdir, changes in _strategies(folder, name):
        finetune(tiny.retrieval(pairs, workdir, **RETRIEVAL, **changes))


def _classification(folder, name):
    """On one device part by part, of batches as long as their longest text."""
    data = tiny.write_labelled(folder / "labelled")
    for workdir, changes in _strategies(folder, name):
        if changes["strategy"] == "one_device":
            changes["accumulation_steps"] = 3
        finetune(
            tiny.classification(data, workdir, **CLASSIFICATION, **changes)
        )


def _distillation(folder, name):
    texts = tiny.write_texts(folder / "texts.txt")
    teacher = folder / "teacher"
    tiny.embedder(dtype="float64").save_to_preset(str(teacher))
    for workdir, changes in _strategies(folder, name):
        distill(
            tiny.distillation(
                texts, teacher, workdir, **DISTILLATION, **changes
            )
        )


def _pretrain(folder, name):
    """With an optimizer of that name."""
    text = tiny.write_text(folder / "text")
    arguments = {**PRETRAINING, **OPTIMIZERS[name]}
    for workdir, changes in _strategies(folder, name):
        pretrain(tiny.pretraining(text, workdir, **arguments, **changes))


def _language_model(folder, name):
    """On one device part by part, of batches as long as their longest row."""
    text = tiny.write_text(folder / "text")
    for workdir, changes in _strategies(folder, name):
        if changes["strategy"] == "one_device":
            changes["accumulation_steps"] = 3
        language_model(
            tiny.language_model(text, workdir, **LANGUAGE_MODEL, **changes)
        )


def _accumulated(folder, name):
    """Part by part, in place of all at once."""
    text = tiny.write_text(folder / "text")
    arguments = {**PRETRAINING, **OPTIMIZERS["sgd"]}
    pretrain(
        tiny.pretraining(text, folder / name, accumulation_steps=3, **arguments)
    )


def _dropped(folder, name):
    mirrored = get_strategy("mirrored")
    np.save(folder / "dropped.npy", dropped(mirrored))
    run(DroppedLine(), folder / name, strategy=mirrored)


_RUNS = {
    "retrieval": _retrieval,
    "classification": _classification,
    "distillation": _distillation,
    "language_model": _language_model,
    "accumulated": _accumulated,
    "dropped": _dropped,
}


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
