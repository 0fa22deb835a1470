"""Index folders that are damaged, or come from a stranger."""

import json
import random
import shutil

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from export import cli
from export.index import index_folder
from export.search import __main__ as command
from keras_fixedhead.retrieval import BM25

TEXTS = ["a dog", "the quick brown fox", "open the file", "read a line", "σ"]


@pytest.fixture(scope="module")
def made(source, opened, tmp_path_factory):
    """An index, and a function of a folder that indexes the same there."""
    folder = tmp_path_factory.mktemp("hostile")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))

    def again(output):
        return index_folder.update(output, corpus, source, opened, None, 3)

    again(folder / "index")
    return folder / "index", again


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "index")


def manifest_of(folder):
    return json.loads((folder / "index.json").read_text())


def edit(folder, **changes):
    """Changes keys of the manifest; None takes one away."""
    manifest = manifest_of(folder) | changes
    manifest = {k: v for k, v in manifest.items() if v is not None}
    (folder / "index.json").write_text(json.dumps(manifest))


def read_all(folder):
    """Does what a search does, without a model."""
    opened = index_folder.load(folder)
    size = opened.manifest["embedding_dim"]
    opened.vectors.search(np.ones([1, size], np.float32), 3)
    for part in opened.manifest["parts"]:
        index_folder.parts.first(folder / "parts" / part["file"])
        index_folder.parts.vectors(folder / "parts" / part["file"])
    assert [text for _, text in opened.documents] == TEXTS
    for row, text in enumerate(TEXTS):
        assert opened.documents[row][1] == text
    opened.bm25.search(["a dog and a fox"], 3)


def test_what_is_whole_is_read(folder):
    manifest = manifest_of(folder)
    assert len(manifest["index_sha256"]) == len(manifest["bm25_sha256"]) == 64
    read_all(folder)


@pytest.mark.parametrize("key", ["index", "bm25", "file"])
@pytest.mark.parametrize(
    "name",
    [
        *("../x.faiss", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b"),
        *("C:x", "..\\x", "\u2044x", "x\n"),
    ],
)
def test_names_that_leave_the_folder(folder, key, name):
    if key == "file":
        manifest = manifest_of(folder)
        manifest["parts"][1]["file"] = name
        edit(folder, parts=manifest["parts"])
    elif key == "bm25" and not name:
        return  # as if there were none
    else:
        edit(folder, **{key: name})
    with pytest.raises(ValueError, match="is not the name of a file beside"):
        index_folder.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"surprise": 1, "also": 2}, "unknown keys: also, surprise"),
        ({"format": 2}, "format is 2, not 1"),
        ({"format": True}, "format is True, not 1"),
        ({"documents": "5"}, "documents is '5', not int"),
        ({"documents": 5.0}, "documents is 5.0, not int"),
        ({"documents": 6}, r"parts have \[3, 2\] documents, and documents is"),
        ({"documents": -5}, r"parts have \[3, 2\] documents"),
        ({"embedding_dim": 0}, "embedding_dim is 0"),
        ({"embedding_dim": True}, "embedding_dim is True, not int"),
        ({"embedding_dim": 14}, r"parquet .* its vectors are .*, not 14 of"),
        ({"index": 7}, "index is 7, not str"),
        ({"index": "x.annoy"}, "index is 'x.annoy', not a .faiss file"),
        ({"index_sha256": 7}, "index_sha256 is 7, not str"),
        ({"index_bytes": 7}, r"faiss .* bytes, not 7$"),
        ({"parts": {}}, "parts is {}, not list"),
        ({"parts": []}, r"parts have \[\] documents"),
        ({"parts": [7]}, r"parts\[0\] is 7, not dict"),
        ({"parts": [{"file": "x"}]}, r"parts\[0\] lacks documents, sha256"),
        ({"model": "tiny"}, "model is 'tiny', not dict"),
        ({"model": {"name": "tiny"}}, "model lacks version"),
        (
            {"model": {"name": "tiny", "version": 3, "code": "x"}},
            "model has unknown keys: code",
        ),
        ({"model": {"name": 7, "version": 3}}, "model.name is 7, not str"),
        ({"options": {"precision": "int7"}}, "options.precision is 'int7'"),
        ({"options": {"precision": []}}, r"options.precision is \[\], not"),
        ({"options": {"dimension": "7"}}, "options.dimension is '7', not int"),
        ({"options": {"exact": True}}, "options has unknown keys: exact"),
    ],
)
def test_manifests_that_will_not_do(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=message):
        index_folder.load(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"7", b"{", b"[" * 10**5, b"\xff\xfe", b"{}"],
)
def test_what_is_no_manifest(tmp_path, content):
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(ValueError, match="index.json is not the manifest"):
        index_folder.load(tmp_path)


def damaged(content, generator):
    """Contents that a file may have instead of its own."""
    yield b""
    yield b"garbage"
    yield bytes(generator.randrange(256) for _ in range(len(content)))
    for _ in range(3):
        yield content[: generator.randrange(len(content))]
        flipped = bytearray(content)
        flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(
            8
        )
        yield bytes(flipped)


FILES = [
    "index-*.faiss",
    "bm25-*/data.csc.index.npy",
    "bm25-*/indices.csc.index.npy",
    "bm25-*/indptr.csc.index.npy",
    "bm25-*/params.index.json",
    "bm25-*/vocab.index.json",
]


@pytest.mark.parametrize("pattern", FILES)
def test_damage_is_found(folder, pattern):
    (path,) = folder.glob(pattern)
    whole = path.read_bytes()
    named = path if path.suffix == ".faiss" else path.parent
    for content in damaged(whole, random.Random(pattern)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Remove it, and .* SHA-256") as e:
            read_all(folder)
        assert str(named) in str(e.value)
        assert "\n" not in str(e.value)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=named.name):
        read_all(folder)
    path.write_bytes(whole)
    read_all(folder)


def test_damage_to_words_without_a_checksum(folder):
    edit(folder, bm25_sha256=None)
    for pattern in FILES[1:]:
        (path,) = folder.glob(pattern)
        whole = path.read_bytes()
        for content in (b"", b"garbage", whole[:50], whole[:-3]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="cannot be read as BM25"):
                index_folder.load(folder).bm25  # noqa: B018
        path.write_bytes(whole)


def test_damage_to_a_part(folder):
    path = sorted((folder / "parts").iterdir())[0]
    whole = path.read_bytes()
    generator = random.Random(7)
    found = 0
    for _ in range(4):
        for content in damaged(whole, generator):
            path.write_bytes(content)
            # Parquet has no checksums: a text or a number may be another.
            try:
                read_all(folder)
            except AssertionError:
                continue
            except ValueError as error:
                found += 1
                assert "Remove it, and `python -m export.index`" in str(error)
                assert str(path) in str(error)
    assert found > 20
    path.unlink()
    with pytest.raises(FileNotFoundError, match=path.name):
        read_all(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.slice(1), "it has . documents, not"),
        (lambda t: t.drop_columns(["id"]), "id"),
        (
            lambda t: t.set_column(1, "text", pa.array(range(len(t)))),
            "its column text is not a string",
        ),
        (
            lambda t: t.set_column(2, "vector", t["id"]),
            "its vectors are string, not 13 of float32",
        ),
        (
            lambda t: t.set_column(
                2,
                "vector",
                pa.array([[1.0, 2.0]] * len(t), pa.list_(pa.float32(), 2)),
            ),
            "not 13 of float32",
        ),
    ],
)
def test_parts_of_something_else(folder, change, message):
    path = sorted((folder / "parts").iterdir())[0]
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(ValueError, match=message) as caught:
        index_folder.load(folder)
    assert str(path) in str(caught.value)


def test_row_groups_of_no_order(folder):
    paths = (folder / "parts").iterdir()
    (path,) = (p for p in paths if pq.read_metadata(p).num_rows == 3)
    table = pq.read_table(path)
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table.slice(0, 1))
        writer.write_table(table.slice(1))
    with pytest.raises(ValueError, match=r"row groups have \[1, 2\] rows"):
        index_folder.load(folder)


@pytest.mark.parametrize("shape", [(4, 13), (5, 12), (0, 13)])
def test_vectors_of_another_number(folder, shape):
    (path,) = folder.glob("*.faiss")
    vectors = faiss.IndexFlatIP(shape[1])
    vectors.add(np.ones(shape, np.float32))
    faiss.write_index(vectors, str(path))
    edit(folder, index_sha256=None, index_bytes=path.stat().st_size)
    with pytest.raises(
        ValueError, match=f"has {shape[0]} vectors of size {shape[1]}, index"
    ):
        index_folder.load(folder)


def test_words_of_another_number(folder, tmp_path):
    (path,) = folder.glob("bm25-*")
    shutil.rmtree(path)
    BM25(["a dog", "a fox"]).save(path)
    edit(folder, bm25_sha256=None)
    with pytest.raises(ValueError, match="it has 2 documents, the index 5"):
        read_all(folder)


def test_an_index_from_before_checksums(made, folder):
    whole = manifest_of(folder)
    edit(folder, index_sha256=None, bm25_sha256=None)
    read_all(folder)
    # The next run writes them, and embeds nothing.
    assert made[1](folder)[1] == 0
    again = manifest_of(folder)
    assert again["index_sha256"] == whole["index_sha256"]
    assert again["bm25_sha256"] == whole["bm25_sha256"]
    # What is cut off is found without them, too.
    edit(folder, index_sha256=None)
    (path,) = folder.glob("*.faiss")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"has \d+ bytes, not \d+"):
        index_folder.load(folder)


def test_a_command_says_it_in_a_line(folder, base_path, capsys):
    edit(folder, index="../index.faiss")
    words = ["--index", str(folder), "--query", "a"]
    words += ["--saved_model", str(base_path)]
    assert cli.run(command.main, command.Arguments, words) == 1
    error = capsys.readouterr().err
    assert "'../index.faiss' is not the name of a file beside it" in error
    assert error.count("\n") == 1
