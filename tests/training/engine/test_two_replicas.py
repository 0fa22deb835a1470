"""Two replicas make the updates that one makes on the same global batch.

As a program, makes runs on one device and on two logical ones:

    python -m tests.training.engine.test_two_replicas FOLDER RUN...

A run is one of `CASES`, or dropped. What is compared is in float64 and without
dropout, so that what differs is not rounding.
"""

import functools
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.conftest import optimize_graphs
from tests.training import tiny, workers
from tests.training.engine.test_loop import Line, attention_steps, run
from tests.training.task_tests import difference
from training import distill, finetune, language_model, pretrain
from training.engine import loop
from training.engine.preset import SHAPE
from training.engine.strategy import get_strategy

PROGRAM = "tests.training.engine.test_two_replicas"
# Reports of attention have no say in what is learned, wherever it is.
REPORTS = {"attention_interval": 50, "attention_sequences": 2}
# Adam hides a factor on the gradients, gradient descent shows it.
SGD = {"optimizer": "sgd", "learning_rate": 0.1}


def distillation(data, workdir, **changes):
    """With each of the losses."""
    texts, teacher = data / "texts.txt", data / "teacher"
    start = dict.fromkeys(SHAPE) | {"init": data / "init"}
    weights = {"state_weight": 2.0, "attention_weight": 2.0}
    changes = {"cache": data / "cache", **start, **weights, **changes}
    return tiny.distillation(texts, teacher, workdir, **changes)


# Verb, named run, data, configuration and what is changed in it.
CASES = {
    "retrieval": (
        finetune,
        "demo_retrieval",
        tiny.write_pairs,
        tiny.retrieval,
        {"learn_temperature": True, "hard_negatives": 1},
    ),
    "classification": (
        finetune,
        "mnli",
        tiny.write_labelled,
        tiny.classification,
        SGD | {"head_dropout": 0.0},
    ),
    "distillation": (
        distill,
        "heal",
        functools.partial(tiny.write_shrunk, dtype="float64"),
        distillation,
        SGD,
    ),
    "language_model": (
        language_model,
        "small_lm",
        tiny.write_text,
        tiny.language_model,
        SGD | {"learning_rate": 0.5, "decay": "rsqrt"},
    ),
    "pretraining": (
        pretrain,
        "small",
        tiny.write_text,
        tiny.pretraining,
        # Its gradients have norms over 1.
        SGD | {"learning_rate": 0.5, "clip_norm": 0.1},
    ),
}


def config(name, folder, workdir, **changes):
    """The configuration of a run on data in a folder, written if needed."""
    _, _, write, make, own = CASES[name]
    data = folder / "data" / name
    if not data.exists():
        write(data)
    exact = {"dtype": "float64", "dropout": 0.0, "steps": 3}
    exact |= {"checkpoint_interval": 50}
    return make(data, workdir, **exact | own | changes)


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


def main(folder, name):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    optimize_graphs(False)
    loop.draw_curves = lambda workdirs, output: None
    one, two = get_strategy("one_device"), get_strategy("mirrored")
    assert (one.num_replicas_in_sync, two.num_replicas_in_sync) == (1, 2)
    if name == "dropped":
        run(DroppedLine(), folder / name, strategy=two)
        return
    divided = name in ("classification", "language_model")
    for strategy, changes in {
        "one_device": {"accumulation_steps": 3} if divided else {},
        "mirrored": {} if name == "distillation" else REPORTS,
    }.items():
        workdir = folder / strategy / name
        CASES[name][0].train(
            config(name, folder, workdir, strategy=strategy, **changes)
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that makes a run by name, once, and returns its folder."""
    folder = tmp_path_factory.mktemp("replicas")
    made = set()

    def make(name):
        if name not in made:
            process = workers.start(
                *("-m", PROGRAM, str(folder), name), stderr=subprocess.PIPE
            )
            _, said = process.communicate()
            assert process.returncode == 0, said
            made.add(name)
        return folder

    return make


# One stands for all where there is little time: it gathers and adds up.
@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "distillation"
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_learning_from_the_whole_batch_is_the_same(runs, name):
    # Losses agree if what is compared with comes from both replicas and the
    # batches are the same; the norms, if gradients flow back to both.
    folder = runs(name)
    one, two = (
        folder / strategy / name for strategy in ("one_device", "mirrored")
    )
    assert difference(one, two) < 1e-9
    for a, b in zip(tiny.metrics(one), tiny.metrics(two), strict=True):
        assert b == pytest.approx(a, rel=1e-5)
    if name != "distillation":
        assert attention_steps(two) == [0] and not attention_steps(one)


@pytest.mark.slow
def test_replicas_of_a_run_drop_different_activations(runs):
    records = tiny.metrics(runs("dropped") / "dropped")
    trained = [r["dropped_by_one"] for r in records if "loss" in r]
    assert len(trained) == 7
    # Half of 97, as of any two draws.
    assert all(20 < 97 * part < 77 for part in trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretraining", "retrieval", "distillation"])
def test_two_workers_learn_the_same(runs, name, tmp_path):
    folder = runs(name)
    verb, named, *_ = CASES[name]
    train = tmp_path / "train"
    changes = {"strategy": "multi_worker", **REPORTS}
    args = tiny.flags(config(name, folder, train, **changes), named)
    both = workers.start_two("-m", verb.__name__, *args)
    assert [process.wait() for process in both] == [0, 0]
    assert difference(folder / "one_device" / name, train) < 1e-9
    assert (train / "preset").exists()
    assert attention_steps(train) == [0]


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2])
