"""A corpus becomes an index folder, in as many runs as it takes."""

import contextlib
import dataclasses
import json
import resource
import shutil
import signal
import subprocess
import sys

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from export import cli, model_source
from export.index import __main__ as index
from export.index import corpus as corpora
from export.index import index_folder, parts
from export.index.manifest import Options

# Eleven documents in shards of three.
TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "open the file",
    "return the sum of two numbers",
    "a dog",
    "sum of the numbers in a file " * 3,
    "é 西 σ",
    "jumps",
    "fox",
    "read line by line",
    "lazy dog",
    "two files",
]
NAMES = [f"d{n}" for n in range(11)]
BLANK = ["", " \n\t", "\x01\u200b\ufeff", "\ufffd\u0301"]


def to_lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": n, "text": t} for n, t in zip(NAMES, TEXTS)]
    records[3]["title"] = "Animals"
    path.write_text(to_lines(records))
    return path


def add_blank_documents(corpus):
    """First and last, between shards and within one."""
    lines = corpus.read_text().splitlines(keepends=True)
    records = [{"_id": f"b{n}", "text": t} for n, t in enumerate(BLANK, 1)]
    records[0]["title"] = "\xad"
    for place, record in zip((11, 6, 4, 0), records):
        lines.insert(place, to_lines([record]))
    corpus.write_text("".join(lines))


def run(corpus, output, *words):
    words = ["--corpus", corpus, "--output", output, "--batch_size", 2, *words]
    if "--shard_documents" not in words:
        words += ["--shard_documents", 3]
    return cli.run(index.main, index.Arguments, [*map(str, words)])


@pytest.fixture
def output(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def update(corpus, output, source, opened):
    """A function of options that indexes, and says how many it embedded."""

    def update(opened=opened, bm25=True, **options):
        options = Options(**options)
        return index_folder.update(
            output, corpus, source, opened, options, 3, bm25=bm25
        )[1]

    return update


def manifest_of(output):
    return json.loads((output / "index.json").read_text())


def read(output):
    """Returns identifiers, texts and vectors in the order of the manifest."""
    tables = [
        pq.read_table(output / "parts" / part["file"]).to_pydict()
        for part in manifest_of(output)["parts"]
    ]
    names, texts, vectors = (
        [value for table in tables for value in table[key]]
        for key in ("id", "text", "vector")
    )
    return names, texts, np.array(vectors, np.float32)


def words_of(output):
    """The name of the BM25 that the manifest names, and what it ranks."""
    opened = index_folder.load(output)
    found = opened.bm25.search(["fox", "lines", "zebra"], 11)
    names = [
        sorted(opened.documents[row][0] for row in rows if row >= 0)
        for rows in found.documents
    ]
    return opened.manifest["bm25"], names


def test_embeds_and_indexes(corpus, output, base_path, embedder, capsys):
    """Leaves out the documents that BERT's tokenizer makes nothing of."""
    add_blank_documents(corpus)
    assert run(corpus, output, "--saved_model", base_path) == 0
    said = capsys.readouterr()
    assert "11 documents, 13 numbers in float32" in said.out
    blank = " ".join(said.err.split())
    assert "without 4 that are blank: 'b4', 'b3', 'b2', 'b1'" in blank
    names, texts, vectors = read(output)
    assert names == NAMES
    expected = [*TEXTS[:3], "Animals\n\na dog", *TEXTS[4:]]
    assert texts == [text.strip() for text in expected]
    oracle = np.array(embedder(embedder.preprocessor(texts)))
    np.testing.assert_allclose(vectors, oracle, atol=1e-5)
    manifest = manifest_of(output)
    assert [part["documents"] for part in manifest["parts"]] == [3, 3, 3, 2]
    assert manifest["model"]["name"] == "tiny"
    assert manifest["model"]["version"] == 3
    assert manifest["embedding_dim"] == 13
    found = faiss.read_index(str(output / manifest["index"]))
    np.testing.assert_array_equal(found.reconstruct_n(0, 11), vectors)


def test_bm25_is_that_of_the_documents(update, corpus, output):
    update()
    first, names = words_of(output)
    assert names == [["d0", "d7"], ["d8"], []]
    # It depends on the texts alone.
    update(precision="int8")
    assert words_of(output)[0] == first
    corpus.write_text(corpus.read_text().replace("lazy dog", "lazy fox"))
    assert update() == 5
    second, names = words_of(output)
    assert names == [["d0", "d7", "d9"], ["d8"], []]
    assert [path.name for path in output.glob("bm25-*")] == [second]
    # Removed, it is made again of the parts.
    shutil.rmtree(output / second)
    (output / ".bm25-0.partial").mkdir()
    assert update() == 0
    assert words_of(output) == (second, names)
    assert not list(output.glob(".*"))


def test_bm25_is_added_to_an_index_without(update, output, monkeypatch):
    update(bm25=False)
    assert not list(output.glob("bm25-*"))
    [index_file] = output.glob("*.faiss")
    written = index_file.stat().st_mtime_ns
    # As an earlier version wrote it.
    manifest = manifest_of(output)
    del manifest["bm25"], manifest["bm25_bytes"]
    (output / "index.json").write_text(json.dumps(manifest))

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(index_folder.BM25, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            update()
    assert "bm25" not in manifest_of(output)
    assert not list(output.glob("*bm25*"))
    assert update() == 0
    assert words_of(output)[1][0] == ["d0", "d7"]
    assert index_file.stat().st_mtime_ns == written


def test_bm25_wants_words(update, corpus, tmp_path):
    corpus.write_text(to_lines([{"text": "a"}, {"text": "the"}]))
    with pytest.raises(ValueError, match="2 documents with none. Pass --no_b"):
        update()
    assert update(bm25=False) == 0
    assert len(list((tmp_path / "index").iterdir())) == 3


def test_continues_after_an_interrupt(update, opened, tmp_path):
    output, left = tmp_path / "index", iter(range(5))

    def ask(batch, signature):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return opened.ask(batch, signature)

    # Shards of 3, 3, 3 and 2 are 2, 2, 2 and 1 batches of 2.
    with pytest.raises(KeyboardInterrupt):
        update(dataclasses.replace(opened, ask=ask))
    assert len(list((output / "parts").iterdir())) == 2
    assert not (output / "index.json").exists()
    before = opened.requests
    assert (update(), opened.requests - before) == (5, 3)
    assert (update(), opened.requests - before) == (0, 3)
    assert read(output)[0] == NAMES


def test_reads_rows_of_several_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_GROUP", 5)
    names = [f"d{n}" for n in range(13)]
    path = tmp_path / "part.parquet"
    shard = corpora.Shard(0, 1, 1, 13, "x")
    vectors = np.arange(13 * 7, dtype=np.float32).reshape(13, 7)
    texts = [name.upper() for name in names]
    parts.write(path, names, texts, vectors, model_source.Model("m", 1), shard)
    found = parts.Documents([path, path], [13, 13])
    rows = list(zip(names, texts)) * 2
    assert [found[row] for row in range(26)] == list(found) == rows
    np.testing.assert_array_equal(parts.vectors(path), vectors)


@pytest.mark.slow
def test_continues_after_a_kill(corpus, output, base_path):
    texts = [f"{text} " * 40 for text in TEXTS * 100]
    corpus.write_text(to_lines({"text": text} for text in texts))
    words = [sys.executable, "-m", "export.index", "--corpus", str(corpus),
             "--output", str(output), "--saved_model", str(base_path),
             "--shard_documents", "61"]  # fmt: skip
    for end in (signal.SIGKILL, signal.SIGINT):
        before = len(list(output.glob("parts/*.parquet")))
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        while len(list(output.glob("parts/*.parquet"))) < before + 3:
            assert process.poll() is None
        process.send_signal(end)
        error = process.communicate()[1]
        assert "Traceback" not in error
    assert process.returncode == 130
    assert error.endswith("interrupted\n")
    kept = {p: p.stat().st_mtime_ns for p in output.glob("parts/*.parquet")}
    subprocess.run(words, check=True)
    assert {p: p.stat().st_mtime_ns for p in kept} == kept
    names, _, vectors = read(output)
    assert names == [str(n) for n in range(1, 1101)]
    assert np.isfinite(vectors).all()
    assert not list(output.glob("**/*.partial"))


@contextlib.contextmanager
def full_disk(size):
    """No file may grow above a size."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(OSError):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk(update, tmp_path):
    with full_disk(1000):
        update()
    assert not list(tmp_path.glob("index/**/*.p*"))
    assert update() == 11
    # Enough for the parts, which are there, and not for the index.
    with full_disk(100):
        update(precision="int8")
    assert len(list(tmp_path.glob("index/*.faiss"))) == 1
    # What was there is there.
    assert index_folder.load(tmp_path / "index").options.precision == "float32"
    assert update(precision="int8") == 0


def test_a_change_costs_its_shard(update, corpus, output):
    update()
    before = manifest_of(output)["parts"]
    corpus.write_text(corpus.read_text().replace("read line", "open line"))
    assert update() == 3
    changed = [a != b for a, b in zip(before, manifest_of(output)["parts"])]
    assert changed == [False, False, True, False]
    assert "open line by line" in read(output)[1]
    # Neither the part nor the index of before is left.
    assert len(list((output / "parts").iterdir())) == 4
    assert len(list(output.glob("*.faiss"))) == 1
    # An identifier is a part of the document, too; a blank line is of none.
    corpus.write_text("\n" + corpus.read_text().replace('"d10"', '"d11"'))
    assert update() == 2


def test_another_precision_embeds_nothing(update, output):
    update()
    assert update(precision="int8", dimension=7, reduction="pca") == 0
    [file] = output.glob("*.faiss")
    small = index_folder.load(output)
    assert str(small) == (
        "11 documents, 7 (pca) of 13 numbers in int8, by tiny version 3"
    )
    assert small.manifest["index"] == file.name
    # The whole queries find their documents in it.
    found = small.vectors.search(read(output)[2], 1)
    assert found.documents[:, 0].tolist() == [*range(11)]


def test_a_server_is_asked_what_it_is_today(
    update, corpus, tmp_path, server, capsys
):
    output = tmp_path / "other"
    words = ["--server", server.rest_url, "--model_name", "tiny"]
    assert run(corpus, output, *words) == 0
    vectors = read(output)[2]
    update()
    np.testing.assert_allclose(vectors, read(tmp_path / "index")[2], atol=1e-5)
    capsys.readouterr()
    run(corpus, output, *words)
    assert "0 embedded now" in capsys.readouterr().out
    # As if another model had been exported under the same number in between.
    path = output / "parts" / manifest_of(output)["parts"][1]["file"]
    table = pq.read_table(path)
    column = table["vector"].combine_chunks()
    turned = type(column).from_arrays(-column.values, type=column.type)
    pq.write_table(table.set_column(2, table.schema.field(2), turned), path)
    run(corpus, output, *words)
    assert "3 embedded now" in capsys.readouterr().out
    np.testing.assert_array_equal(read(output)[2], vectors)


def test_beam_writes_what_is_missing(update, corpus, output, base_path, capsys):
    pytest.importorskip("apache_beam")
    add_blank_documents(corpus)
    update()
    expected = read(output)
    for part in manifest_of(output)["parts"][1:3]:
        (output / "parts" / part["file"]).unlink()
    words = ["--saved_model", base_path, "--runner", "DirectRunner"]
    assert run(corpus, output, *words) == 0
    assert "6 embedded now" in capsys.readouterr().out
    for found, wanted in zip(read(output), expected):
        np.testing.assert_array_equal(found, wanted)


def test_a_worker_of_beam_with_another_model(corpus, tmp_path, source):
    beam = pytest.importorskip("export.index.beam")
    another = model_source.Model("tiny", 3, "0" * 64)
    with pytest.raises(ValueError, match="has another model than its"):
        beam._Embed(source, corpus, tmp_path, another).setup()


SERVER = ["--server", "SERVER", "--model_name", "tiny"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Pass one of `saved_model`"),
        (["--server", "grpc://x"], "`model_name` must be"),
        (["--saved_model", "nowhere"], "versions there: none"),
        (["--saved_model", "TINY", "--ca", "x"], "`ca` is for `server`"),
        (["--saved_model", "TINY/3", "--version", "5"], "there: 3, wanted: 5"),
        ([*SERVER, "--dimension", "17"], "`dimension` must"),
        (["--saved_model", "HALF"], "must turn 'text' into 'embedding'"),
        ([*SERVER, "--shard_documents", "0"], "be positive"),
    ],
)
def test_command_line_errors(
    corpus, tmp_path, base_path, half_plus, server, capsys, words, message
):
    paths = {"TINY": base_path, "HALF": half_plus, "SERVER": server.grpc_url}
    for name, path in paths.items():
        words = [word.replace(name, str(path)) for word in words]
    assert run(corpus, tmp_path / "index", *words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    # Nothing was embedded for it.
    assert not [*tmp_path.glob("index/*/*")]
