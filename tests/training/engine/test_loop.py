"""The loop on a toy task: what it leaves, resuming, and how it stops."""

import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedMultiHeadAttention
from tests.training.tiny import metrics
from training.engine.cli import Interrupted, RunFailed
from training.engine.configs import RunConfig, TrainingConfig
from training.engine.loop import train_and_evaluate
from training.engine.records import RunRecords
from training.engine.strategy import get_strategy
from training.engine.task import SequenceTask

STEPS = 7


class Line(SequenceTask):
    """Learns the slope 3; the batch of `bad_step` is not a number."""

    counts = ()
    settings = {}

    def __init__(self, dropout=0.5, bad_step=-1):
        self._dropout = dropout
        self._bad_step = bad_step

    def build(self):
        self.model = keras.Sequential(
            [
                keras.layers.Dropout(self._dropout),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        self.model.build((None, 5))

    def training_dataset(self, context, first_step):
        def batch(step):
            x = tf.random.stateless_normal([3, 5], [11, step])
            return tf.where(step == self._bad_step, np.nan, x)

        return tf.data.Dataset.range(first_step, tf.int64.max).map(batch)

    def totals(self, batch):
        return {}

    def flops(self, totals):
        return None

    def loss(self, batch, totals):
        target = 3.0 * tf.reduce_sum(batch, axis=1, keepdims=True)
        predicted = self.model(batch, training=True)
        return tf.reduce_mean((predicted - target) ** 2), {}

    def evaluation_dataset(self, context):
        batch = tf.data.Dataset.from_tensors(np.eye(5, dtype="float32"))
        return batch.repeat(context.num_replicas_in_sync)

    def evaluation_step(self, batch):
        return {"slope": self.model(batch)[:, 0]}

    def figures(self, outputs):
        return {"slope": float(np.mean(outputs["slope"]))}

    def save(self, folder):
        folder.mkdir()
        np.save(folder / "slope.npy", self.model.get_weights()[0])


def run(task, workdir, strategy=None, records_type=RunRecords, **changes):
    records = records_type(workdir, STEPS, chief=True)
    records.claim({"seed": 7})
    strategy = strategy or get_strategy("one_device")
    return train_and_evaluate(
        task,
        strategy,
        TrainingConfig(
            steps=STEPS,
            global_batch_size=3 * strategy.num_replicas_in_sync,
            learning_rate=0.5,
            warmup_steps=1,
        ),
        RunConfig(
            data=workdir,
            workdir=workdir,
            log_interval=1,
            evaluation_interval=3,
            checkpoint_interval=2,
            keep_checkpoints=3,
            **changes,
        ),
        records,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts, and its last figures."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, run(Line(), workdir)


def test_run_leaves_its_records(whole):
    workdir, figures = whole
    records = metrics(workdir)
    trained = [r["step"] for r in records if "loss" in r]
    evaluated = [r["step"] for r in records if "slope" in r]
    assert trained == [1, 2, 3, 4, 5, 6, 7]
    assert evaluated == [0, 3, 6, 7]
    slopes = [r["slope"] for r in records if "slope" in r]
    assert slopes[0] < slopes[-1] == figures["slope"]
    kept = sorted(path.name for path in workdir.glob("checkpoints/*.index"))
    assert kept == ["ckpt-3.index", "ckpt-5.index", "ckpt-7.index"]
    assert len(list((workdir / "summaries").glob("events*"))) == 1
    assert np.load(workdir / "preset" / "slope.npy").shape == (5, 1)
    assert not (workdir / "preset.partial").exists()
    described = json.loads((workdir / "preset" / "run.json").read_text())
    assert described == {
        "settings": {"seed": 7},
        "figures": {"step": 7, **figures},
    }


class Attending(Line):
    """Learns the same with attention over the five numbers."""

    def build(self):
        x = keras.Input((5, 1))
        attended = FixedMultiHeadAttention(2, head_size=3)(x)
        self.attention = keras.Model(x, attended)
        line = keras.layers.Dense(1, use_bias=False)
        y = line(keras.layers.Flatten()(attended))
        self.model = keras.Model(x, y)

    def attention_inputs(self, batch):
        return self.attention, batch[..., tf.newaxis]


def attention_steps(workdir):
    return [
        event.step
        for file in sorted((workdir / "summaries/attention").glob("events*"))
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == "attention_entropy/layer_00"
    ]


def test_attention_is_reported_at_its_interval(tmp_path):
    run(Attending(), tmp_path, attention_interval=2)
    assert attention_steps(tmp_path) == [0, 2, 4, 6]


class Two:
    """A strategy, as far as it is asked."""

    num_replicas_in_sync = 2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"attention_interval": 0}, "`attention_interval` must be"),
        (
            {"attention_interval": 1, "attention_sequences": 0},
            "`attention_sequences`.*: 0",
        ),
        (
            {"jit_compile": True, "strategy": Two()},
            "`jit_compile` .* with 2 replicas",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(Attending(), tmp_path, **change)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", [3, 4])  # 3: it was to evaluate
def test_signal_saves_and_the_next_run_goes_on_exactly(step, whole, tmp_path):
    class Records(RunRecords):
        def trained(self, now, outputs):
            super().trained(now, outputs)
            if now == step:
                os.kill(os.getpid(), signal.SIGTERM)

    message = f"SIGTERM after step {step}"
    with pytest.raises(Interrupted, match=message) as stopped:
        run(Line(), tmp_path, records_type=Records)
    assert stopped.value.exit_status == 128 + signal.SIGTERM
    assert (tmp_path / "checkpoints" / f"ckpt-{step}.index").exists()
    # What a killed process leaves behind the last checkpoint.
    with open(tmp_path / "metrics.jsonl", "a") as lines:
        lines.write(json.dumps({"step": 8, "loss": 99.0}) + '\n{"step": 9')
    assert run(Line(), tmp_path) == whole[1]
    assert metrics(tmp_path) == metrics(whole[0])
    described = [path / "preset" / "run.json" for path in (tmp_path, whole[0])]
    assert described[0].read_bytes() == described[1].read_bytes()
    np.testing.assert_array_equal(
        np.load(tmp_path / "preset" / "slope.npy"),
        np.load(whole[0] / "preset" / "slope.npy"),
    )


def test_a_failed_save_leaves_no_preset_and_is_repeated(whole, tmp_path):
    def fail(self, folder):
        folder.mkdir()
        raise OSError("disk full")

    task = Line()
    task.save = fail.__get__(task)
    with pytest.raises(OSError, match="disk full"):
        run(task, tmp_path)
    assert not list(tmp_path.glob("preset*"))
    assert run(Line(), tmp_path) == whole[1]
    assert metrics(tmp_path) == metrics(whole[0])


def test_what_is_not_finite_stops_before_it_is_saved(whole, tmp_path):
    with pytest.raises(FloatingPointError, match="loss .* at step 2"):
        run(Line(bad_step=1), tmp_path)
    reader = tf.train.load_checkpoint(tmp_path / "checkpoints")
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype.is_floating:
            assert np.isfinite(reader.get_tensor(name)).all(), name
    assert run(Line(), tmp_path) == whole[1]
    assert metrics(tmp_path) == metrics(whole[0])


def test_failed_operation_is_explained_without_its_graph(tmp_path):
    missing = str(tmp_path / "missing")

    class Reader(Line):
        def training_dataset(self, context, first_step):
            def read(x):
                content = tf.io.read_file(missing)
                return x + tf.cast(tf.strings.length(content), tf.float32)

            return super().training_dataset(context, first_step).map(read)

    with pytest.raises(RunFailed) as failed:
        run(Reader(), tmp_path)
    assert str(failed.value).startswith(
        f"{missing}; No such file or directory. Checkpoints are kept; "
    )


def test_compiled_run_is_the_same(tmp_path):
    slopes = []
    for compiled in (False, True):
        workdir = tmp_path / str(compiled)
        run(Line(dropout=0.0), workdir, jit_compile=compiled)
        slopes.append(np.load(workdir / "preset" / "slope.npy"))
    np.testing.assert_allclose(*slopes, rtol=1e-4)
