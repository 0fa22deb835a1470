"""What every task does: it packs, trains, and is saved and loaded.

A new task is an entry in `tasks.py`; what only it does has tests of its own.
"""

import functools
import inspect
import json
import os
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest

import keras_fixedhead
from keras_fixedhead.growth import grow_head_size, grow_heads, grow_positions
from keras_fixedhead.task import FixedHeadTask
from tests.keras_fixedhead.tasks import LENGTH, TASKS
from tests.tiny_models import as_numpy, assert_close, real, tensors

PADDING = 4


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return TASKS[request.param]


@pytest.fixture(scope="module")
def model(task, vocabulary):
    """What no test changes."""
    keras.utils.set_random_seed(7)
    return task.new(vocabulary)


def choose(model, inputs):
    return {name: inputs[name] for name in model.input}


@pytest.fixture
def inputs(model, masked_inputs):
    return choose(model, masked_inputs)


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    model.save_to_preset(str(folder))
    return str(folder)


def assert_same_weights(again, model):
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    assert_close(again.weights, model.weights, rtol=0)


def assert_same_model(again, model, inputs):
    assert type(again) is type(model)
    assert again.get_config() == model.get_config()
    assert_same_weights(again, model)
    assert_close(again(inputs), model(inputs), atol=1e-6)
    ours, theirs = (m.preprocessor.tokenizer for m in (again, model))
    assert ours.get_vocabulary() == theirs.get_vocabulary()


def run_packed(task, model, inputs, **options):
    outputs = getattr(model, task.packed)(tensors(inputs), **options)
    if isinstance(outputs, tuple):
        logits, packing = outputs
        return packing.pad(logits)
    return outputs


def dtypes(outputs):
    return {
        keras.backend.standardize_dtype(x.dtype)
        for x in keras.tree.flatten(outputs)
    }


def test_every_task_is_here():
    classes = (getattr(keras_fixedhead, n) for n in keras_fixedhead.__all__)
    assert {cls for cls in classes if issubclass(cls, FixedHeadTask)} == {
        task.cls for task in TASKS.values()
    }


@pytest.mark.any_backend
def test_config(task, model):
    again = task.cls.from_config(json.loads(json.dumps(model.get_config())))
    assert again.get_config() == model.get_config()
    for part, options in (
        (again, task.options),
        (again.preprocessor, task.preprocessor),
    ):
        parameters = inspect.signature(type(part).__init__).parameters
        others = {"self", "backbone", "preprocessor", "tokenizer", "kwargs"}
        assert parameters.keys() - others <= options.keys()
        for name, value in options.items():
            assert name not in parameters or value != parameters[name].default
            assert getattr(part, name) == value, name
    assert isinstance(model.preprocessor, task.cls.preprocessor_cls)


def test_keras_file(model, inputs, tmp_path):
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(again, model, inputs)


@pytest.mark.any_backend
def test_preset(task, model, preset, inputs):
    base = task.cls.__bases__[-1]
    # KerasHub's class of the task finds ours.
    cls = task.cls if base is keras_hub.models.Task else base
    assert_same_model(cls.from_preset(preset), model, inputs)


@pytest.mark.any_backend
def test_the_encoder_of_another_task(task, model, preset, tmp_path):
    embedder = keras_fixedhead.FixedHeadTextEmbedder.from_preset(preset)
    assert_same_weights(embedder.backbone, model.backbone)
    embedder.save_to_preset(str(tmp_path))
    if task.cls is type(embedder):
        return
    again = task.cls.from_preset(str(tmp_path), **task.required)
    assert_same_weights(again.backbone, model.backbone)
    # As long as the encoder allows.
    for made in (again, embedder):
        assert made.preprocessor.sequence_length == 17
    x = again.preprocessor(task.x, y=None)
    x, *_ = keras.utils.unpack_x_y_sample_weight(x)
    assert x["token_ids"].shape == (4, 17)


@pytest.mark.slow
def test_fresh_process_without_custom_objects(vocabulary, tmp_path):
    code = "import keras, sys, keras_fixedhead\n"
    for name, task in TASKS.items():
        path = f"{tmp_path}/{name}.keras"
        task.new(vocabulary).save(path)
        code += f"model = keras.models.load_model({path!r}, compile=False)\n"
        code += f"assert type(model).__name__ == {task.cls.__name__!r}\n"
        code += "assert model.preprocessor.tokenizer('attention')\n"
    python_path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**os.environ, "PYTHONPATH": python_path},
    )


VARIANTS = [
    pytest.param(
        task,
        options,
        backbone,
        id=f"{name}-{number}",
        marks=pytest.mark.any_backend if number else (),
    )
    for name, task in TASKS.items()
    for number, (options, backbone) in enumerate([({}, {}), *task.variants])
]


@pytest.mark.parametrize(("task", "options", "backbone"), VARIANTS)
def test_packed_equals_padded(
    task, options, backbone, vocabulary, masked_inputs
):
    model = task.new(vocabulary, options=options, **backbone)
    inputs = choose(model, masked_inputs)
    expected = real(model(inputs), inputs)
    for fixed_size in (False, True):
        packed = run_packed(task, model, inputs, fixed_size=fixed_size)
        assert dtypes(packed) == {"float32"}
        assert_close(real(packed, inputs), expected, rtol=1e-5, atol=1e-5)
        for x in keras.tree.flatten(as_numpy(packed)):
            assert np.isfinite(x).all()


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_bfloat16(task, model, dtype, vocabulary, inputs):
    half = task.new(vocabulary, dtype=dtype)
    half.set_weights(model.get_weights())
    expected = {"float32"} if dtype == "mixed_bfloat16" else {dtype}
    if task.float32_head:
        expected.add("float32")
    assert dtypes(half.weights) == expected
    expected = real(model(inputs), inputs)
    for outputs in (half(inputs), run_packed(task, half, inputs)):
        assert dtypes(outputs) == {"float32" if task.in_float32 else "bfloat16"}
        assert_close(real(outputs, inputs), expected, atol=0.03)


@pytest.mark.any_backend
def test_float64(float64, task, vocabulary, inputs):
    assert dtypes(task.new(vocabulary, "float64")(inputs)) == {"float64"}


@pytest.mark.any_backend
@pytest.mark.parametrize("where", ["backbone", "head"])
def test_dropout_is_for_training(task, where, vocabulary, inputs):
    if where == "head" and "dropout" not in task.options:
        pytest.skip("the head drops nothing")
    rates = {"backbone": 0.0, "head": 0.0, where: 0.5}
    model = task.new(
        vocabulary,
        options={
            name: rates["head"] for name in task.options if name == "dropout"
        },
        dropout=rates["backbone"],
    )
    inputs = tensors(inputs)

    def packed(training):
        return run_packed(task, model, inputs, training=training)

    for run in (packed, lambda training: model(inputs, training=training)):
        one, other, dropped = (
            keras.tree.flatten(as_numpy(run(training)))[0]
            for training in (False, False, True)
        )
        np.testing.assert_array_equal(one, other)
        assert abs(dropped - one).max() > 1e-3


def test_fit(task, vocabulary):
    """The loss falls, and it does not see padding."""
    options, backbone = task.trained
    model = task.new(vocabulary, options=options, dropout=0.0, **backbone)
    # To compile takes longer.
    optimizer = keras.optimizers.SGD(0.02)
    model.compile(optimizer, loss=task.loss, run_eagerly=True)
    assert np.all(np.isfinite(model.evaluate(task.x, task.y, verbose=0)))

    x = model.preprocessor(task.x, y=None)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(x)
    y = task.y if y is None else y
    model.preprocessor = None
    weights = model.get_weights()

    def pad(value, x):
        if x.shape[1:] != (LENGTH,):
            return x
        return np.pad(x, [(0, 0), (0, PADDING)], constant_values=value)

    x, y = as_numpy((x, y))
    arrays = {"x": x, "y": y}
    padded = {
        "x": {name: pad(9 * (name == "token_ids"), x[name]) for name in x},
        "y": keras.tree.map_structure(functools.partial(pad, task.no_y), y),
    }
    if weight is not None:
        arrays["sample_weight"] = as_numpy(weight)
        padded["sample_weight"] = pad(0, arrays["sample_weight"])
    losses, after = [], []
    for data in (arrays, padded):
        model.set_weights(weights)
        history = model.fit(**data, shuffle=False, verbose=0)
        losses += history.history["loss"]
        after.append(model.get_weights())
    last = model.evaluate(**padded, verbose=0)
    assert 0 < np.ravel(last)[0] < losses[0] < np.inf
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_close(after[1], after[0], atol=1e-5)


@pytest.mark.any_backend
def test_growth(model, inputs):
    """A larger model with the same outputs and parts of its own."""
    grown = grow_positions(grow_heads(grow_head_size(model, [17, 19]), 5), 23)
    assert type(grown) is type(model)
    assert grown.count_params() > model.count_params()
    expected = real(model(inputs), inputs)
    assert_close(real(grown(inputs), inputs), expected, atol=2e-5)
    configs = [grown.get_config(), model.get_config()]
    assert configs[0].pop("backbone") != configs[1].pop("backbone")
    assert configs[0] == configs[1]
    ours, theirs = grown.preprocessor, model.preprocessor
    assert ours is not theirs
    assert ours.tokenizer.get_vocabulary() == theirs.tokenizer.get_vocabulary()


@pytest.mark.any_backend
def test_unknown_argument_is_an_error(task, model):
    name = task.cls.__name__
    with pytest.raises(TypeError, match=f"{name} has no argument `unknown`"):
        task.cls(model.backbone, unknown=1, **task.required)
