"""Names of the Hugging Face Hub, without a network."""

import fnmatch
import importlib

import huggingface_hub
import pytest

from keras_fixedhead import convert
from keras_fixedhead.convert.hugging_face import is_hub_name
from tests.keras_fixedhead.hugging_face import write_model

NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Hugging Face's cache, empty, of a machine without a network."""
    folder = tmp_path / "cache"
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [NAME, f"hf://{NAME}"])
def test_a_failed_download_says_how_to_get_the_folder(name):
    with pytest.raises(
        FileNotFoundError,
        match=f"{NAME} is no folder here, and cannot be downloaded.*"
        rf"snapshot_download\('{NAME}'\) and pass the folder",
    ) as error:
        convert.from_hugging_face(name)
    assert "\n" not in str(error.value)


@pytest.mark.any_backend
def test_what_was_downloaded_is_read(cache):
    repository = cache / f"models--{NAME.replace('/', '--')}"
    commit = 40 * "a"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.parent.mkdir()
    write_model(snapshot)
    source = convert.read_hugging_face(NAME)
    assert source.origin == str(snapshot)


@pytest.mark.any_backend
def test_no_pickle_is_downloaded(monkeypatch, tmp_path):
    def download(name, allow_patterns):
        assert name == NAME
        for file, wanted in {
            "model.safetensors": True,
            "model.safetensors.index.json": True,
            "1_Pooling/config.json": True,
            "vocab.txt": True,
            "pytorch_model.bin": False,
            "model.pt": False,
            "rust_model.ot": False,
            "tf_model.h5": False,
            "onnx/model.onnx": False,
            "modeling.py": False,
        }.items():
            found = any(fnmatch.fnmatch(file, x) for x in allow_patterns)
            assert found == wanted, file
        return write_model(tmp_path / "downloaded")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = convert.read_hugging_face(NAME)
    assert source.origin == str(tmp_path / "downloaded")


@pytest.mark.any_backend
def test_a_mistyped_path_is_not_downloaded(tmp_path):
    (tmp_path / "runs").mkdir()
    assert is_hub_name("runz/minilm")
    for path in ("runs/minilm", "minilm", "/runz", "a/b/c"):
        assert not is_hub_name(path)
        with pytest.raises(FileNotFoundError, match="`folder` must be.*a repo"):
            convert.from_hugging_face(path)
    assert is_hub_name("hf://runs/minilm")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Received a file: file"):
        convert.from_hugging_face("file")
    with pytest.raises(FileNotFoundError, match="runs has no config.json"):
        convert.from_hugging_face("runs")
