"""Commands that search start without Keras."""

import json
import subprocess
import sys

import pytest

from export import without_keras


def test_starts_without_keras(tmp_path, base_path):
    """Keras and its backend take longer to import than a search takes."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "a lazy dog"}))
    output = ["--output", tmp_path / "index", "--corpus", corpus]
    search = ["--index", tmp_path / "index", "--query", "a dog"]
    for words in (["export.index", *output], ["export.search", *search]):
        words = ["-m", *words, "--saved_model", base_path]
        ended = subprocess.run(
            [sys.executable, "-X", "importtime", *words],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        imported = {
            line.split("|")[-1].strip() for line in ended.stderr.splitlines()
        }
        assert "faiss" in imported
        assert not {"keras", "jax", "tensorflow.python"} & imported


def test_a_deferred_package_runs_when_it_is_used(tmp_path, monkeypatch):
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "__init__.py").write_text(
        "from later import first\nvalue = first.value + 1\nruns = [1]\n"
    )
    (tmp_path / "later" / "first.py").write_text("value = 6\n")
    monkeypatch.syspath_prepend(tmp_path)
    without_keras.defer("later")
    without_keras.defer("later")
    from later import first

    package = sys.modules["later"]
    assert first.value == 6
    assert "runs" not in vars(package)
    from later import value

    assert value == 7
    package.runs.append(2)
    assert package.runs == [1, 2]
    assert sys.modules["later"] is package
    with pytest.raises(ImportError):
        from later import nothing  # noqa: F401
    for name in ("later", "later.first"):
        monkeypatch.delitem(sys.modules, name)
