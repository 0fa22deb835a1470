"""Program: the same runs on one device and on two logical ones.

    python -m tests.training.engine.two_replicas FOLDER RUN...

A run is one of `CASES`, accumulated or dropped. What is compared is in float64
and without dropout, so that what differs is not rounding.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.training import tiny
from tests.training.engine.test_loop import Line, run
from training import distill, finetune, language_model, pretrain
from training.engine.strategy import draw_for_each_replica, get_strategy

_EXACT = {"dtype": "float64", "dropout": 0.0, "checkpoint_interval": 50}
# Adam hides a factor on the gradients, gradient descent shows it.
_SGD = {"optimizer": "sgd", "learning_rate": 0.1}
# Gradients of these runs have norms over 1.
PRETRAINING = _EXACT | {
    "steps": 50,
    "clip_norm": 0.1,
    "log_interval": 10,
    "evaluation_interval": 50,
}
# Reports of attention have no say in what is learned, wherever it is.
REPORTS = {"attention_interval": 50, "attention_sequences": 2}
# On one device part by part, of batches as long as their longest row.
_PARTS = {"accumulation_steps": 3}


def _teacher_and_texts(folder):
    teacher = folder / "teacher"
    if not teacher.exists():
        tiny.embedder(dtype="float64").save_to_preset(str(teacher))
    return tiny.write_texts(folder / "texts.txt"), teacher


@dataclasses.dataclass(frozen=True)
class Case:
    """A run: its verb and named run, its data, and what is changed.

    `on_one_device` are further changes on one device.
    """

    verb: object
    named: str
    data: Callable
    make: Callable
    changes: dict
    on_one_device: dict = dataclasses.field(default_factory=dict)

    def config(self, folder, workdir, **changes):
        """The run of `make` on data in a folder, which it writes if needed."""
        data = self.data(folder)
        data = data if isinstance(data, tuple) else (data,)
        return self.make(*data, workdir, **{**self.changes, **changes})


def _pretraining(**changes):
    return Case(
        pretrain,
        "small",
        lambda folder: tiny.write_text(folder / "text"),
        tiny.pretraining,
        PRETRAINING | changes,
    )


CASES = {
    "retrieval": Case(
        finetune,
        "demo_retrieval",
        lambda folder: tiny.write_pairs(folder / "pairs"),
        tiny.retrieval,
        _EXACT
        | {
            "crop_document": 0.5,
            "inverse_cloze": 0.5,
            "learn_temperature": True,
            "hard_negatives": 2,
            "matryoshka_dims": (7,),
            "steps": 4,
        },
    ),
    "classification": Case(
        finetune,
        "mnli",
        lambda folder: tiny.write_labelled(folder / "labelled"),
        tiny.classification,
        _EXACT | _SGD | {"head_dropout": 0.0, "steps": 6},
        _PARTS,
    ),
    "distillation": Case(
        distill,
        "compact",
        _teacher_and_texts,
        tiny.distillation,
        _EXACT
        | _SGD
        | {"attention_weight": 1.0, "relation_heads": 3, "steps": 4},
    ),
    "language_model": Case(
        language_model,
        "small_lm",
        lambda folder: tiny.write_text(folder / "text"),
        tiny.language_model,
        _EXACT | _SGD | {"steps": 4, "learning_rate": 0.5, "decay": "rsqrt"},
        _PARTS,
    ),
    "adamw": _pretraining(optimizer="adamw", learning_rate=0.01),
    "sgd": _pretraining(optimizer="sgd", learning_rate=0.5),
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
    one, two = get_strategy("one_device"), get_strategy("mirrored")
    assert (one.num_replicas_in_sync, two.num_replicas_in_sync) == (1, 2)
    for name in names:
        if name == "dropped":
            np.save(folder / "dropped.npy", dropped(two))
            run(DroppedLine(), folder / name, strategy=two)
        elif name == "accumulated":
            case = CASES["sgd"]
            pretrain.train(case.config(folder, folder / name, **_PARTS))
        else:
            case = CASES[name]
            for strategy, changes in {
                "one_device": case.on_one_device,
                "mirrored": REPORTS,
            }.items():
                workdir = folder / strategy / name
                case.verb.train(
                    case.config(folder, workdir, strategy=strategy, **changes)
                )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
