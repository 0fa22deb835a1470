"""Presets on disk: whole or not there, and what makes two of them equal."""

import shutil

import keras
import pytest

from tests.training import tiny
from training.engine.preset import preset_sha256, weights_sha256, write_preset


@pytest.fixture
def model():
    layer = keras.layers.Dense(5)
    layer.build((None, 7))
    return layer


def save(folder):
    folder.mkdir()
    (folder / "weights").write_text("whole")


def test_preset_appears_whole(model, tmp_path):
    folder = tmp_path / "preset"

    def look(partial):
        assert not folder.exists()
        save(partial)
        assert not folder.exists()

    # What a killed process left.
    (tmp_path / "preset.partial").mkdir()
    (tmp_path / "preset.partial" / "half").write_text("half")
    write_preset(folder, model, look)
    assert list(tmp_path.iterdir()) == [folder]
    assert [path.name for path in folder.iterdir()] == ["weights"]


def test_disk_needs_space_for_the_weights(model, tmp_path, monkeypatch):
    # 7 * 5 of the kernel, 5 of the bias
    free = 4 * 40 + 2**24 - 1
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="needs 16,777,376 bytes.* 16,777,375"):
        write_preset(tmp_path / "preset", model, save)
    assert not list(tmp_path.iterdir())


def test_checksum_is_of_what_computes(tmp_path):
    preset = tmp_path / "preset"
    tiny.embedder(prompts={"query": "one "}).save_to_preset(str(preset))
    checksums = [preset_sha256(preset, "teacher")]
    # A story of how it was made changes nothing.
    (preset / "run.json").write_text("{}")
    assert preset_sha256(preset, "teacher") == checksums[0]
    for file in (
        *("task.json", "preprocessor.json", "assets/tokenizer/vocabulary.txt"),
        "model.weights.h5",
    ):
        with open(preset / file, "a") as content:
            content.write("\n")
        checksums.append(preset_sha256(preset, "teacher"))
    assert len(set(checksums)) == 5


@pytest.mark.parametrize("checksum", [weights_sha256, preset_sha256])
def test_folder_without_weights_is_no_preset(checksum, tmp_path):
    with pytest.raises(ValueError, match=f"`init` .* Received: '{tmp_path}'"):
        checksum(tmp_path, "init")
