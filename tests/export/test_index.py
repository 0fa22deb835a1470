"""A corpus becomes an index folder, in as many runs as it takes."""

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

from export import cli, encoder, without_keras
from export.index import __main__ as index
from export.index import corpus as corpora
from export.index import index_folder, parts
from export.index.index_folder import update as update_folder

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
WORDS = ["--shard_documents", "3", "--batch_size", "2"]


def to_lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"_id": f"d{n}", "text": t} for n, t in enumerate(TEXTS)]
    records[3]["title"] = "Animals"
    path.write_text(to_lines(records))
    return path


def run(corpus, output, *words):
    return cli.run(
        index.main,
        index.Arguments,
        ["--corpus", str(corpus), "--output", str(output), *WORDS, *words],
    )


@pytest.fixture(scope="module")
def source(base_path):
    return encoder.Source(saved_model=base_path, batch_size=2, threads=1)


@pytest.fixture(scope="module")
def opened(source):
    """The encoder of several runs; to load it takes longer than they do."""
    with source.open() as opened:
        yield opened


@pytest.fixture
def update(corpus, tmp_path, source, opened):
    """A function of options that indexes, and says how many it embedded."""

    def update(opened=opened, bm25=True, **options):
        options = index_folder.Options(**options)
        output = tmp_path / "index"
        return update_folder(
            output, corpus, source, opened, options, 3, bm25=bm25
        )[1]

    return update


def read(output):
    """Returns identifiers, texts and vectors in the order of the manifest."""
    manifest = json.loads((output / "index.json").read_text())
    tables = [
        pq.read_table(output / "parts" / part["file"]).to_pydict()
        for part in manifest["parts"]
    ]
    names, texts, vectors = (
        [value for table in tables for value in table[key]]
        for key in ("id", "text", "vector")
    )
    return names, texts, np.array(vectors, np.float32)


def test_embeds_and_indexes(corpus, tmp_path, base_path, embedder, capsys):
    output = tmp_path / "index"
    assert run(corpus, output, "--saved_model", str(base_path)) == 0
    assert "11 documents, 13 numbers in float32" in capsys.readouterr().out
    names, texts, vectors = read(output)
    assert names == [f"d{n}" for n in range(11)]
    expected = [*TEXTS[:3], "Animals\n\na dog", *TEXTS[4:]]
    assert texts == [text.strip() for text in expected]
    oracle = np.array(embedder(embedder.preprocessor(texts)))
    np.testing.assert_allclose(vectors, oracle, atol=1e-5)
    manifest = json.loads((output / "index.json").read_text())
    assert [part["documents"] for part in manifest["parts"]] == [3, 3, 3, 2]
    assert manifest["model"]["name"] == "tiny"
    assert manifest["model"]["version"] == 3
    assert manifest["embedding_dim"] == 13
    found = faiss.read_index(str(output / manifest["index"]))
    np.testing.assert_array_equal(found.reconstruct_n(0, 11), vectors)


def test_reads_a_row(update, tmp_path):
    update()
    opened = index_folder.load(tmp_path / "index")
    for row, text in ((0, TEXTS[0]), (5, TEXTS[5]), (10, TEXTS[10])):
        assert opened.documents[row] == (f"d{row}", text)
    for row in (-1, 11):
        with pytest.raises(IndexError):
            opened.documents[row]


def test_rows_of_later_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_GROUP", 5)
    names = [f"d{n}" for n in range(13)]
    path = tmp_path / "part.parquet"
    shard = corpora.Shard(0, 1, 1, 13, "x")
    vectors = np.arange(13 * 7, dtype=np.float32).reshape(13, 7)
    parts.write(path, names, names, vectors, encoder.Model("m", 1), shard)
    found = parts.Documents([path, path], [13, 13])
    assert [found[row][0] for row in range(26)] == names * 2
    np.testing.assert_array_equal(parts.vectors(path), vectors)


class Interrupting:
    """Answers so many requests of an encoder, then is interrupted."""

    def __init__(self, opened, count):
        self.opened, self.left = opened, count

    def __call__(self, batch, signature):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.opened.ask(batch, signature)


BLANK = {
    "b1": "",
    "b2": " \n\t",
    "b3": "\x01\u200b\ufeff",
    "b4": "\ufffd\u0301",
}


@pytest.mark.parametrize("way", ["saved_model", "server", "beam"])
def test_leaves_out_blank_documents(
    corpus, tmp_path, base_path, server, capsys, way
):
    """What BERT's tokenizer removes is no document, whoever embeds."""
    output = tmp_path / "index"
    words = {
        "saved_model": ["--saved_model", base_path, "--precision", "int8"],
        "server": ["--server", server.grpc_url, "--model_name", "tiny"],
        "beam": ["--saved_model", base_path, "--runner", "DirectRunner"],
    }[way]
    if way == "beam":
        pytest.importorskip("apache_beam")
    records = [{"_id": name, "text": text} for name, text in BLANK.items()]
    records[0]["title"] = "\xad"
    lines = corpus.read_text().splitlines(keepends=True)
    # First and last, between shards and within one.
    for place, record in zip((11, 6, 4, 0), records):
        lines.insert(place, to_lines([record]))
    corpus.write_text("".join(lines))
    assert run(corpus, output, *map(str, words)) == 0
    names, texts, vectors = read(output)
    assert names == [f"d{n}" for n in range(11)]
    assert len(vectors) == 11
    said = " ".join(capsys.readouterr().err.split())
    assert "without 4 that are blank: 'b4', 'b3', 'b2', 'b1'" in said
    [found] = output.glob("*.faiss")
    assert faiss.read_index(str(found)).ntotal == 11


def test_a_blank_document_changes_no_shard(update, corpus):
    assert update() == 11
    corpus.write_text(
        to_lines([{"_id": "b", "text": "\x07"}]) + corpus.read_text()
    )
    assert update() == 0


def test_all_documents_are_blank(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(to_lines({"text": text} for text in BLANK.values()))
    with pytest.raises(ValueError, match="no document: all 4 are blank"):
        corpora.plan(path, 3)


def words_of(output):
    """The name of the BM25 that the manifest names, and what it ranks."""
    opened = index_folder.load(output)
    found = opened.bm25.search(["fox", "lines", "zebra"], 11)
    names = [
        sorted(opened.documents[row][0] for row in rows if row >= 0)
        for rows in found.documents
    ]
    return opened.manifest["bm25"], names


def test_bm25_is_that_of_the_documents(update, corpus, tmp_path):
    output = tmp_path / "index"
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
    # Broken and removed, it is made again of the parts.
    (output / second / "vocab.index.json").unlink()
    with pytest.raises(ValueError, match="Remove it, and .* makes it again"):
        index_folder.load(output).bm25  # noqa: B018
    shutil.rmtree(output / second)
    (output / ".bm25-0.partial").mkdir()
    assert update() == 0
    assert words_of(output) == (second, names)
    assert not list(output.glob(".*"))


def test_bm25_is_added_to_an_index_without(update, tmp_path, monkeypatch):
    output = tmp_path / "index"
    update(bm25=False)
    assert not list(output.glob("bm25-*"))
    [index_file] = output.glob("*.faiss")
    written = index_file.stat().st_mtime_ns
    # As an earlier version wrote it.
    manifest = json.loads((output / "index.json").read_text())
    del manifest["bm25"], manifest["bm25_bytes"]
    (output / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="holds no BM25.*--ranker encoder"):
        index_folder.load(output).bm25  # noqa: B018

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(index_folder.os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            update()
    assert "bm25" not in json.loads((output / "index.json").read_text())
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
    output = tmp_path / "index"
    # Shards of 3, 3, 3 and 2 are 2, 2, 2 and 1 batches of 2.
    stopped = dataclasses.replace(opened, ask=Interrupting(opened, 5))
    with pytest.raises(KeyboardInterrupt):
        update(stopped)
    assert len(list((output / "parts").iterdir())) == 2
    assert not (output / "index.json").exists()
    before = opened.requests
    assert (update(), opened.requests - before) == (5, 3)
    assert (update(), opened.requests - before) == (0, 3)
    assert read(output)[0] == [f"d{n}" for n in range(11)]


@pytest.mark.slow
def test_continues_after_a_kill(corpus, tmp_path, base_path):
    output = tmp_path / "index"
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


def test_a_full_disk(update, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError):
            update()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("index/**/*.p*"))
    assert update() == 11
    # Enough for the parts, which are there, and not for the index.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError):
            update(precision="int8")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(list(tmp_path.glob("index/*.faiss"))) == 1
    # What was there is there.
    assert index_folder.load(tmp_path / "index").options.precision == "float32"
    assert update(precision="int8") == 0


def test_a_change_costs_its_shard(update, corpus, tmp_path):
    output = tmp_path / "index"
    update()
    before = json.loads((output / "index.json").read_text())
    corpus.write_text(corpus.read_text().replace("read line", "open line"))
    assert update() == 3
    after = json.loads((output / "index.json").read_text())
    changed = [a != b for a, b in zip(before["parts"], after["parts"])]
    assert changed == [False, False, True, False]
    assert "open line by line" in read(output)[1]
    # Neither the part nor the index of before is left.
    assert len(list((output / "parts").iterdir())) == 4
    assert len(list(output.glob("*.faiss"))) == 1
    # An identifier is a part of the document, too; a blank line is of none.
    corpus.write_text("\n" + corpus.read_text().replace('"d10"', '"d11"'))
    assert update() == 2


def test_another_precision_embeds_nothing(update, tmp_path):
    output = tmp_path / "index"
    update()
    words = {"precision": "int8", "dimension": 7, "reduction": "pca"}
    assert update(**words) == 0
    [file] = output.glob("*.faiss")
    small = index_folder.load(output)
    assert str(small) == (
        "11 documents, 7 (pca) of 13 numbers in int8, by tiny version 3"
    )
    assert small.manifest["index"] == file.name
    # The whole queries find their documents in it.
    vectors = read(output)[2]
    assert small.vectors.search(vectors, 1).documents[:, 0].tolist() == [
        *range(11)
    ]


def test_a_broken_index_is_made_again(update, tmp_path):
    update()
    [file] = (tmp_path / "index").glob("*.faiss")
    whole = file.read_bytes()
    file.write_bytes(whole[:99])
    # As it says; where the file is there, the run has nothing to do.
    with pytest.raises(ValueError, match="Remove it, and .* makes it again"):
        index_folder.load(tmp_path / "index")
    file.unlink()
    assert update() == 0
    assert file.read_bytes() == whole


def test_a_server_is_asked_what_it_is_today(
    corpus, tmp_path, base_path, server, capsys
):
    output = tmp_path / "index"
    words = ["--server", server.rest_url, "--model_name", "tiny"]
    assert run(corpus, output, *words) == 0
    vectors = read(output)[2]
    run(corpus, tmp_path / "other", "--saved_model", str(base_path))
    np.testing.assert_allclose(vectors, read(tmp_path / "other")[2], atol=1e-5)
    capsys.readouterr()
    run(corpus, output, *words)
    assert "0 embedded now" in capsys.readouterr().out
    # As if another model had been exported under the same number in between.
    part = json.loads((output / "index.json").read_text())["parts"][1]["file"]
    table = pq.read_table(output / "parts" / part)
    column = table["vector"].combine_chunks()
    turned = type(column).from_arrays(-column.values, type=column.type)
    table = table.set_column(2, table.schema.field(2), turned)
    pq.write_table(table, output / "parts" / part)
    run(corpus, output, *words)
    assert "3 embedded now" in capsys.readouterr().out
    np.testing.assert_array_equal(read(output)[2], vectors)


def test_beam_writes_what_is_missing(
    update, corpus, tmp_path, base_path, capsys
):
    pytest.importorskip("apache_beam")
    output = tmp_path / "index"
    update()
    expected = read(output)
    for part in json.loads((output / "index.json").read_text())["parts"][1:3]:
        (output / "parts" / part["file"]).unlink()
    words = ["--saved_model", str(base_path), "--runner", "DirectRunner"]
    assert run(corpus, output, *words) == 0
    assert "6 embedded now" in capsys.readouterr().out
    for found, wanted in zip(read(output), expected):
        np.testing.assert_array_equal(found, wanted)


def test_beam_says_what_failed(corpus, tmp_path, source):
    beam = pytest.importorskip("export.index.beam")
    shards = corpora.plan(corpus, 3).shards[:1]
    another = encoder.Model("tiny", 3, "0" * 64)
    with pytest.raises(ChildProcessError, match="has another model than its"):
        beam.run(source, corpus, shards, tmp_path, another, "DirectRunner", [])


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"_id": "a b", "id": "c"}, "a b"),
        ({"id": 17}, "17"),
        ({}, "2"),
    ],
)
def test_identifiers(tmp_path, record, name):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n" + to_lines([record | {"text": "a"}]))
    [shard] = corpora.plan(path, 3).shards
    assert corpora.read(path, shard) == ([name], ["a"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"text": "a"}\n{"text": 3}\n', ":2: 'text' must be a string"),
        ('{"text": "a"}\n\n{"title": "a"}\n', ":3: 'text' must be a string"),
        ('{"text": "a"\n', ":1: a line must be JSON"),
        ('["a"]\n', ":1: a line must be a JSON object"),
        ('{"text": "a", "_id": ""}\n', ":1: '_id' must not be empty"),
        ('{"text": "a", "id": null}\n', ":1: 'id' must be a string"),
        ('{"text": "\\ud800"}\n', ":1: 'text' holds a lone surrogate"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', ":2: a line must be in UTF-8"),
        (
            '{"_id": "2", "text": "a"}\n{"text": "b"}\n',
            ":2: line 1 has the identifier '2', too",
        ),
        ("\n", "jsonl has no document"),
    ],
)
def test_corpora_that_will_not_do(tmp_path, lines, message):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    with pytest.raises(ValueError, match="corpus.jsonl") as error:
        corpora.plan(path, 3)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corpus_that_changes_meanwhile(corpus):
    shards = corpora.plan(corpus, 3).shards
    corpus.write_text(corpus.read_text().replace("quick", "QUICK"))
    with pytest.raises(ValueError, match="changed while it was read"):
        corpora.read(corpus, shards[0])
    assert corpora.read(corpus, shards[1])[0] == ["d3", "d4", "d5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Pass one of `saved_model`"),
        (["--server", "grpc://x"], "`model_name` must be"),
        (["--saved_model", "nowhere"], "versions there: none"),
        (["--saved_model", "TINY", "--version", "5"], "there: 3, wanted: 5"),
        (["--saved_model", "TINY/3", "--version", "5"], "`version` is 5"),
        (["--saved_model", "TINY", "--threads", "0"], "`threads` must be"),
        (["--saved_model", "TINY", "--dimension", "17"], "`dimension` must"),
        (["--saved_model", "HALF"], "must turn 'text' into 'embedding'"),
        (["--saved_model", "TINY", "--shard_documents", "0"], "be positive"),
    ],
)
def test_command_line_errors(
    corpus, tmp_path, base_path, half_plus, capsys, words, message
):
    words = [
        word.replace("TINY", str(base_path)).replace("HALF", str(half_plus))
        for word in words
    ]
    assert run(corpus, tmp_path / "index", *words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    # Nothing was embedded for it.
    assert not [*tmp_path.glob("index/*/*")]


def test_names_what_a_manifest_lacks(tmp_path):
    (tmp_path / "index.json").write_text('{"format": 1, "index": "x"}')
    with pytest.raises(ValueError, match="it lacks documents, model, options"):
        index_folder.load(tmp_path)


def test_starts_without_keras(corpus, tmp_path, base_path):
    """Keras and its backend take longer to import than a search takes."""
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
