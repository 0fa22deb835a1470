"""Files from strangers: what would run code, or read other files, is refused.

Every payload would make the file `marker`, and one test lets them.
"""

import base64
import contextlib
import io
import json
import marshal
import os
import pathlib
import pickle
import re
import shutil
import types
import zipfile

import h5py
import numpy as np
import pytest

from export import load as export_load
from export.files import golden
from keras_fixedhead import FixedHeadTextEmbedder, convert
from keras_fixedhead.diagnostics import __main__ as diagnostics
from tests.export import tiny
from tests.keras_fixedhead import hugging_face
from training.convert import conversion
from training.corpus.folder import read_stream
from training.engine import preset as training_preset

ROOT = pathlib.Path(__file__).parents[1]
# What every command prints as one line.
REFUSED = (ValueError, OSError)


class _Pickled:
    def __init__(self, marker):
        self._command = f"touch '{marker}'"

    def __reduce__(self):
        return os.system, (self._command,)


def pickled(marker):
    return pickle.dumps(_Pickled(marker))


def described(module, class_name, config, registered_name=None):
    """An object as Keras writes it in JSON."""
    names = {"class_name": class_name, "registered_name": registered_name}
    return {"module": module, "config": config, **names}


def system(marker):
    """An object that Keras would make by calling `os.system`."""
    command = {"command": f"touch '{marker}'"}
    return described("os", "system", command, "os>system")


def function(marker):
    return described("builtins", "function", "eval", "function")


def bytecode(marker):
    source = f"lambda x: open({str(marker)!r}, 'w').close()"
    return marshal.dumps(eval(source).__code__)


def lambda_layer(marker):
    code = base64.b64encode(bytecode(marker)).decode()
    function = {
        "class_name": "__lambda__",
        "config": {"code": code, "defaults": None, "closure": None},
    }
    config = {"name": "payload", "function": function}
    return described("keras.layers", "Lambda", config)


def saved_model_layer(marker):
    config = {"filepath": str(marker), "call_endpoint": "serve"}
    return described("keras.layers", "TFSMLayer", config)


def sequential(marker):
    config = {"name": "sequential", "layers": [lambda_layer(marker)]}
    return described("keras", "Sequential", config)


def replace(document, keys, value):
    """Sets what `document` holds under a path of keys; `""` is all of it."""
    if not keys:
        return value
    parent = document
    *path, last = keys.split(".")
    for key in path:
        parent = parent[key]
    parent[last] = value
    return document


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    embedder = tiny.new_embedder()
    embedder.save_to_preset(str(folder / "preset"))
    embedder.save(folder / "model.keras")
    return folder


@pytest.fixture
def preset(saved, tmp_path):
    return shutil.copytree(saved / "preset", tmp_path / "preset")


def edit(file, keys, value):
    document = json.loads(file.read_text())
    file.write_text(json.dumps(replace(document, keys, value)))


def test_the_payloads_would_run(tmp_path):
    markers = [tmp_path / name for name in ("pickle", "system", "bytecode")]
    pickle.loads(pickled(markers[0]))
    os.system(system(markers[1])["config"]["command"])
    code = marshal.loads(bytecode(markers[2]))
    types.FunctionType(code, {"open": open})(0)
    assert all(marker.exists() for marker in markers)


def diagnose(folder):
    texts = folder / "texts.txt"
    texts.write_text("a text")
    words = ("--model", str(folder), "--texts", str(texts))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert diagnostics.main(words) == 1
    raise ValueError(said.getvalue().strip())


LOADS = {
    "export": export_load.load,
    "training": lambda folder: training_preset.read_embedder(folder, "model"),
    "task": lambda folder: training_preset.read_task(
        folder, "model", FixedHeadTextEmbedder
    ),
    "convert": lambda folder: conversion.read_own_preset(
        str(folder), "text_embedder"
    ),
    "diagnostics": diagnose,
}


@pytest.mark.parametrize(
    ("file", "keys", "payload"),
    [
        ("task.json", "", system),
        ("task.json", "config.backbone", lambda_layer),
        ("task.json", "config.backbone", saved_model_layer),
        ("task.json", "config.backbone.config.activation", function),
        ("task.json", "config.preprocessor.config.tokenizer", system),
        ("task.json", "config.pooling_mode", function),
        ("config.json", "", sequential),
        ("config.json", "config.activation", function),
        ("tokenizer.json", "", system),
        ("tokenizer.json", "config.vocabulary", system),
    ],
)
def test_a_class_in_a_preset(preset, marker, file, keys, payload):
    if file != "task.json":  # an encoder
        (preset / "task.json").unlink()
        (preset / "preprocessor.json").unlink()
    edit(preset / file, keys, payload(marker))
    with pytest.raises(REFUSED):
        export_load.load(preset)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "Could not locate class 'system'"),
        ("[]", "list indices|has no attribute 'get'|must hold a JSON object"),
        ('{"a":' * 99_999, "recursion"),
    ],
)
def test_a_sentence_names_the_preset(preset, marker, load, content, says):
    if content is None:
        edit(preset / "task.json", "config.backbone", system(marker))
    else:
        (preset / "task.json").write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        load(preset)
    message = str(caught.value)
    assert str(preset) in message
    assert "\n" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("keys", "payload"),
    [
        ("", sequential),
        ("config.backbone", saved_model_layer),
        ("config.backbone.compile_config", system),
    ],
)
def test_a_class_in_a_keras_file(saved, tmp_path, marker, keys, payload):
    path = tmp_path / "model.keras"
    with (
        zipfile.ZipFile(saved / "model.keras") as source,
        zipfile.ZipFile(path, "w") as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                document = replace(json.loads(content), keys, payload(marker))
                content = json.dumps(document)
            target.writestr(name, content)
    with pytest.raises(REFUSED):
        export_load.load(path)


def test_pickled_weights(preset, marker):
    (preset / "model.weights.h5").write_bytes(pickled(marker))
    with pytest.raises(ValueError, match=f"{preset} cannot be loaded"):
        export_load.load(preset)


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
@pytest.mark.parametrize("kind", ["external", "storage", "virtual", "itself"])
def test_weights_of_another_file(preset, tmp_path, kind):
    with h5py.File(preset / "model.weights.h5", "a") as file:
        # The first array that the visitor returns ends the visit.
        name = file.visititems(
            lambda name, item: name if hasattr(item, "shape") else None
        )
        values = file[name][()]
        del file[name]
        other, raw = tmp_path / "other.h5", tmp_path / "other.raw"
        with h5py.File(other, "w") as secret:
            secret["x"] = values
        raw.write_bytes(values.tobytes())
        if kind == "external":
            file[name] = h5py.ExternalLink(other, "/x")
        elif kind == "storage":
            where = [(raw, 0, raw.stat().st_size)]
            file.create_dataset(
                name, values.shape, values.dtype, external=where
            )
        elif kind == "virtual":
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[...] = h5py.VirtualSource(other, "x", values.shape)
            file.create_virtual_dataset(name, layout)
        else:
            file[name] = values
    if kind == "itself":
        export_load.load(preset)
        return
    with pytest.raises(REFUSED):
        export_load.load(preset)


def test_shards_outside_the_preset(preset, saved):
    (preset / "model.weights.h5").unlink()
    shard = os.path.relpath(saved / "preset" / "model.weights.h5", preset)
    index = {"metadata": {}, "weight_map": {"/embeddings": shard}}
    (preset / "model.weights.json").write_text(json.dumps(index))
    with pytest.raises(REFUSED):
        export_load.load(preset)


@pytest.mark.parametrize("file", [golden.FILE, "train.npy"])
def test_pickled_arrays(tmp_path, marker, file):
    manifest = {"kind": "stream", "counts": {"train tokens": 1}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    objects = np.array([_Pickled(marker)], object)
    with pytest.raises(REFUSED):
        if file == golden.FILE:
            np.savez(path, **{"serving_default/inputs/text": objects})
            golden.load(tmp_path)
        else:
            np.save(path, objects)
            read_stream(tmp_path)


def test_a_folder_of_hugging_face(tmp_path, marker):
    folder = hugging_face.write_model(tmp_path / "theirs")
    weights = folder / "model.safetensors"
    elsewhere = weights.rename(tmp_path / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    shards = {"pooler.dense.bias": f"../{elsewhere.name}"}
    hugging_face.write_json(index, {"weight_map": shards})
    options = {"pooling_mode": "mean", "normalize": True}
    with pytest.raises(REFUSED):
        convert.from_hugging_face(folder, **options)
    index.unlink()
    weights.write_bytes(pickled(marker))
    with pytest.raises(REFUSED):
        convert.from_hugging_face(folder, **options)


def test_nothing_here_reads_a_pickle():
    runs_code = re.compile(
        r"^\s*(import|from) (pickle|marshal|dill|joblib|shelve)\b"
        r"|allow_pickle=True|safe_mode=|trust_remote_code|torch\.load"
        r"|enable_unsafe_deserialization|yaml\.load\(",
        re.MULTILINE,
    )
    for part in ("keras_fixedhead", "training", "export"):
        for path in (ROOT / part).rglob("*.py"):
            found = runs_code.search(path.read_text(encoding="utf-8"))
            assert not found, (path, found)
