"""Files from strangers: what would run code, or read other files, is refused.

Every payload would make the file `marker`, and one test lets them.
"""

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
import pytest

from export import load as export_load
from export.files import card, golden
from export.index import index_folder
from keras_fixedhead import FixedHeadTextEmbedder, convert, retrieval
from keras_fixedhead.diagnostics import __main__ as diagnostics
from tests.export import tiny
from tests.hostile import (
    bytecode,
    function,
    lambda_layer,
    pickled,
    popen,
    replace,
    saved_model_layer,
    sequential,
    system,
    write_pickled_arrays,
)
from tests.keras_fixedhead import hugging_face
from training.convert import sources
from training.corpus.folder import read_stream
from training.engine import preset as training_preset

ROOT = pathlib.Path(__file__).parents[1]
# What every command prints as one line.
REFUSED = (ValueError, OSError)


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
    "convert": lambda folder: sources.read_own_preset(
        str(folder), "text_embedder"
    ),
    "diagnostics": diagnose,
}


@pytest.mark.parametrize(
    ("keys", "payload"),
    [
        ("", system),
        ("config.backbone", popen),
        ("config.backbone", lambda_layer),
        ("config.backbone", saved_model_layer),
        ("config.backbone.config.activation", function),
        ("config.preprocessor", system),
        ("config.preprocessor.config.tokenizer", popen),
        ("config.preprocessor.config.tokenizer.config.vocabulary", system),
        ("config.pooling_mode", function),
    ],
)
@pytest.mark.parametrize("load", [LOADS["export"], LOADS["training"]])
def test_a_class_in_a_task(preset, marker, load, keys, payload):
    edit(preset / "task.json", keys, payload(marker))
    with pytest.raises(REFUSED):
        load(preset)


@pytest.mark.parametrize(
    ("file", "keys", "payload"),
    [
        ("config.json", "", system),
        ("config.json", "", sequential),
        ("config.json", "config.activation", function),
        ("tokenizer.json", "", system),
        ("tokenizer.json", "config.vocabulary", popen),
    ],
)
def test_a_class_in_an_encoder(preset, marker, file, keys, payload):
    (preset / "task.json").unlink()
    (preset / "preprocessor.json").unlink()
    edit(preset / file, keys, payload(marker))
    with pytest.raises(REFUSED):
        export_load.load(preset)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "Could not locate class 'Popen'"),
        ("[]", "list indices|must hold a JSON object"),
        ('{"class_name": "FixedHeadTextEmbedder"}', "registered_name"),
        ("{", "Expecting property name"),
        ('{"a":' * 99_999, "recursion"),
    ],
)
def test_a_sentence_names_the_preset(preset, marker, load, content, says):
    if content is None:
        edit(preset / "task.json", "config.backbone", popen(marker))
    else:
        (preset / "task.json").write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        load(preset)
    message = str(caught.value)
    assert str(preset) in message
    assert "\n" not in message and len(message) < 400


def test_a_sentence_names_a_preset_of_keras_hub(tmp_path):
    name = "BertBackbone"
    names = {"class_name": name, "registered_name": f"keras_hub>{name}"}
    (tmp_path / "config.json").write_text(json.dumps(names))
    with pytest.raises(ValueError, match=f"{tmp_path} cannot be loaded"):
        sources.read_source(str(tmp_path))


@pytest.mark.parametrize(
    ("keys", "payload"),
    [
        ("", system),
        ("", lambda_layer),
        ("", sequential),
        ("config.backbone", lambda_layer),
        ("config.backbone", saved_model_layer),
        ("config.backbone.compile_config", system),
        ("config.preprocessor.config.tokenizer", popen),
        ("config.pooling_mode", function),
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


@pytest.mark.filterwarnings("ignore:Skipping invalid path:UserWarning")
def test_a_keras_file_writes_nothing_elsewhere(saved, tmp_path, marker):
    path = shutil.copy(saved / "model.keras", tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("../marker", "assets/../../marker", str(marker)):
            archive.writestr(name, "")
    export_load.load(path)
    assert sorted(tmp_path.iterdir()) == [pathlib.Path(path)]


@pytest.mark.parametrize("kind", ["pickle", "HDF5"])
def test_what_is_no_keras_file(tmp_path, marker, kind):
    path = tmp_path / "model.keras"
    if kind == "pickle":
        path.write_bytes(pickled(marker))
    else:  # Keras's former format
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = json.dumps(sequential(marker))
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


def test_the_settings_of_a_run_are_data(preset, marker):
    (preset / "run.json").write_text(json.dumps(system(marker)))
    service = export_load.load(preset)
    assert card.describe(service, preset)["run"] == system(marker)
    (preset / "run.json").write_bytes(pickled(marker))
    with pytest.raises(REFUSED):
        card.describe(service, preset)


def test_golden_answers(tmp_path, marker):
    write_pickled_arrays(tmp_path / golden.FILE, marker)
    with pytest.raises(REFUSED):
        golden.load(tmp_path)


def test_a_stream_of_tokens(tmp_path, marker):
    manifest = {"kind": "stream", "counts": {"train tokens": 1}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    write_pickled_arrays(tmp_path / "train.npy", marker)
    with pytest.raises(REFUSED):
        read_stream(tmp_path)
    (tmp_path / "train.npy").write_bytes(pickled(marker))
    with pytest.raises(REFUSED):
        read_stream(tmp_path)


def test_an_index(tmp_path, marker):
    names = ("documents", "model", "options", "parts", "embedding_dim")
    manifest = {"format": 1, "index": "i.faiss", **dict.fromkeys(names, {})}
    (tmp_path / index_folder.MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / "i.faiss").write_bytes(pickled(marker))
    with pytest.raises(REFUSED):
        index_folder.load(tmp_path)


def test_bm25(tmp_path, marker):
    retrieval.BM25(["one text", "another text"]).save(tmp_path / "bm25")
    arrays = sorted((tmp_path / "bm25").glob("*.npy"))
    assert arrays
    for path in arrays:
        write_pickled_arrays(path, marker)
    with pytest.raises(REFUSED):
        retrieval.BM25.load(tmp_path / "bm25")


def pickles_alone(folder, marker):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickled(marker))


def a_pickle_by_another_name(folder, marker):
    (folder / "model.safetensors").write_bytes(pickled(marker))


def shards_elsewhere(folder, marker):
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    hugging_face.write_json(
        folder / "model.safetensors.index.json",
        {"weight_map": {"pooler.dense.bias": "../other.safetensors"}},
    )


def a_class_of_modules(folder, marker):
    hugging_face.write_modules(folder)
    module = {"idx": 0, "path": "", "type": "os.system"}
    hugging_face.write_json(folder / "modules.json", [module])


def modules_elsewhere(folder, marker):
    hugging_face.write_modules(folder)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "1_Pooling").rename(folder.parent / "1_Pooling")
    modules[1]["path"] = "../1_Pooling"
    hugging_face.write_json(folder / "modules.json", modules)


def code_of_its_own(folder, marker):
    source = f"open({str(marker)!r}, 'w')"
    (folder / "modeling_payload.py").write_text(source)
    config = {
        **hugging_face.CONFIG,
        "model_type": "payload",
        "auto_map": {"AutoModel": "modeling_payload.Payload"},
    }
    hugging_face.write_json(folder / "config.json", config)


def a_vocabulary_elsewhere(folder, marker):
    (folder / "vocab.txt").rename(folder.parent / "vocab.txt")
    hugging_face.write_json(
        folder / "tokenizer.json",
        {"model": {"type": "WordPiece", "vocab": "../vocab.txt"}},
    )


@pytest.mark.parametrize(
    "change",
    [
        pickles_alone,
        a_pickle_by_another_name,
        shards_elsewhere,
        a_class_of_modules,
        modules_elsewhere,
        code_of_its_own,
        a_vocabulary_elsewhere,
    ],
)
def test_a_folder_of_hugging_face(tmp_path, marker, change):
    folder = hugging_face.write_model(tmp_path / "theirs")
    change(folder, marker)
    with pytest.raises(REFUSED):
        convert.from_hugging_face(folder, pooling_mode="mean", normalize=True)


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
