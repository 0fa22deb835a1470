"""Index folders that are damaged."""

import json
import random
import shutil

import numpy as np
import pytest

from export.index import index_folder
from export.index.manifest import Options
from keras_fixedhead import beir

TEXTS = ["a dog", "the quick brown fox", "open the file", "read a line", "σ"]


@pytest.fixture(scope="module")
def made(source, opened, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    corpus = folder / "corpus.jsonl"
    beir.write_records(corpus, [{"text": text} for text in TEXTS])
    index = folder / "index"
    index_folder.update(index, corpus, source, opened, Options(), 3)
    return index


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "index")


def edit(folder, **changes):
    """Changes keys of the manifest; None takes one away."""
    manifest = json.loads((folder / "index.json").read_text()) | changes
    manifest = {k: v for k, v in manifest.items() if v is not None}
    (folder / "index.json").write_text(json.dumps(manifest))


def read_all(folder):
    """Does what a search does, without a model."""
    opened = index_folder.load(folder)
    opened.vectors.search(np.ones([1, 13], np.float32), 3)
    for part in opened.manifest["parts"]:
        index_folder.parts.first(folder / "parts" / part["file"])
        index_folder.parts.vectors(folder / "parts" / part["file"])
    assert [text for _, text in opened.documents] == TEXTS
    for row, text in enumerate(TEXTS):
        assert opened.documents[row][1] == text
    opened.bm25.search(["a dog and a fox"], 3)


def test_an_index_from_before_checksums(folder):
    read_all(folder)
    edit(folder, index_sha256=None, bm25_sha256=None)
    read_all(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format is 2, not 1"),
        ({"options": {"exact": True}}, "argument 'exact'"),
        ({"index": "../x.faiss"}, "'../x.faiss' is not the name of a file"),
        ({"bm25": "/etc"}, "'/etc' is not the name of a file"),
    ],
)
def test_manifests_that_will_not_do(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=f"not the manifest .*{message}"):
        index_folder.load(folder)


def damaged(content, generator):
    """Contents that a file may have instead of its own."""
    yield b""
    yield bytes(generator.randrange(256) for _ in range(len(content)))
    yield content[: generator.randrange(len(content))]
    flipped = bytearray(content)
    flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    yield bytes(flipped)


@pytest.mark.parametrize(
    "pattern", ["*.faiss", "bm25-*/indices.*", "bm25-*/params.*"]
)
def test_damage_is_found(folder, pattern):
    (path,) = folder.glob(pattern)
    named = path if path.suffix == ".faiss" else path.parent
    for content in damaged(path.read_bytes(), random.Random(pattern)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Remove it, and .* SHA-256") as e:
            read_all(folder)
        assert str(named) in str(e.value)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=named.name):
        read_all(folder)


def test_damage_to_a_part(folder):
    first, second = sorted((folder / "parts").iterdir())
    whole = first.read_bytes()
    for content in (b"", b"garbage", whole[:-9], second.read_bytes()):
        first.write_bytes(content)
        with pytest.raises(
            ValueError, match="Remove it, and .* documents"
        ) as e:
            index_folder.load(folder)
        assert str(first) in str(e.value)
    first.unlink()
    with pytest.raises(FileNotFoundError, match=first.name):
        index_folder.load(folder)
