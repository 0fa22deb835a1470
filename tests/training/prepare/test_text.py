"""The verb `training.prepare text`: whole, resumable, the same everywhere."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import subprocess
import threading
import time
import types

import psutil
import pytest

from keras_fixedhead import FixedHeadTokenizer
from tests.training.prepare.verb import (
    ROOT,
    SPECIAL,
    command,
    content,
    documents_of,
    flags_of,
)
from training.corpus.tokenized import read_corpus
from training.prepare import shards, text
from training.prepare.__main__ import main
from training.prepare.configs import TextConfig
from training.prepare.workers import worker_pool


def prepare(*args, **flags):
    return main(flags_of("text", *args, **flags))


def test_holds_every_document(source, made, vocabulary):
    output, _ = made
    corpus = read_corpus(output)
    assert (output / "vocabulary.txt").read_bytes() == vocabulary.read_bytes()
    # The tokenizer's other half, which has no graph.
    tokenizer = FixedHeadTokenizer(str(vocabulary))
    expected = [tokenizer._tokenize_python(document) for document in source[1]]
    train, heldout = documents_of(corpus.train), documents_of(corpus.heldout)
    assert sorted(train + heldout) == sorted(expected)
    held_out = {str(document) for document in heldout}
    assert train == [d for d in expected if str(d) not in held_out]
    assert 40 < len(heldout) < 95

    manifest = json.loads((output / "manifest.json").read_text())
    tokens = {
        name: sum(len(line) for document in documents for line in document)
        for name, documents in (("training", train), ("held-out", heldout))
    }
    words = {"training": 0, "held-out": 0}
    for lines, ids in zip(source[1], expected):
        split = "held-out" if str(ids) in held_out else "training"
        words[split] += sum(len(line.split()) for line in lines)
    assert sum(shard.words for shard in corpus.train) == words["training"]
    assert sum(shard.words for shard in corpus.heldout) == words["held-out"]
    assert manifest["counts"] == {
        "training documents": len(train),
        "held-out documents": len(heldout),
        "lines": sum(map(len, expected)),
        "training words": words["training"],
        "held-out words": words["held-out"],
        "training tokens": tokens["training"],
        "held-out tokens": tokens["held-out"],
        "unknown tokens": manifest["counts"]["unknown tokens"],
        "lines with bytes that are not UTF-8, removed": 2,
        "over-long lines, cut": 0,
        "over-long documents, cut": 0,
        "tokens in the vocabulary": 13,
    }
    assert manifest["left_out"] == {
        "empty documents": 1,
        "over-long lines of JSON": 0,
        "documents of fewer than 2 tokens": 1,
        "lines without a token": 1,
    }


def test_made_before(made, source, capsys):
    output, flags = made
    before = content(output)
    assert prepare(output=output, workers=3, **flags) == 0
    assert "made before" in capsys.readouterr().out
    assert prepare(output=output, **flags | {"seed": 6}) == 1
    assert "--overwrite" in capsys.readouterr().err
    path = source[0] / "a.txt"
    with touched(path):
        assert prepare(output=output, **flags) == 1
        assert "files that have changed" in capsys.readouterr().err
    # What it was made of need not be there any more.
    aside = source[0].rename(source[0].with_name("aside"))
    assert prepare(output=output, **flags) == 0
    aside.rename(source[0])
    assert main(["pairs", "--overwrite", "--output", str(output)]) == 1
    assert "must be a new folder, or one that" in capsys.readouterr().err
    assert content(output) == before


@contextlib.contextmanager
def touched(path):
    before = path.stat()
    os.utime(path)
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_output_among_the_sources(source, vocabulary, capsys):
    folder, _ = source
    for named in (folder, folder.with_name("sour*")):
        flags = {"source": named, "vocabulary": vocabulary}
        assert prepare(output=folder / "x" / "data", **flags) == 1
        assert "must lie outside" in capsys.readouterr().err
    assert not (folder / "x").exists()


@pytest.mark.slow
def test_killed_and_continued(made, source, tmp_path, capsys):
    expected, flags = made
    output, work = tmp_path / "data", tmp_path / ".data.partial"
    flags = flags | {"output": output}
    run = subprocess.Popen(command(workers=1, **flags), cwd=ROOT)
    try:
        wait_for(lambda: len(list(work.glob("parts/*.json"))) > 40)
        # Not two at a time.
        assert prepare(**flags) == 1
        assert "by another process" in capsys.readouterr().err
    finally:
        workers = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        run.wait()
    assert workers
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    finished = {path: path.stat() for path in work.glob("data/*.tfrecord")}
    names = {path.stem for path in work.glob("parts/*.json")}
    assert 40 < len(names) < len(list(expected.glob("*.tfrecord")))
    assert not output.exists()

    assert prepare(**flags | {"seed": 6}) == 1
    assert "differs in seed" in capsys.readouterr().err
    with touched(source[0] / "a.txt"):
        assert prepare(**flags) == 1
        assert "differs in sources" in capsys.readouterr().err

    given = flags["vocabulary"]
    with touched(given):
        assert prepare(**flags) == 1
        assert "differs in files" in capsys.readouterr().err

    # What a worker left that was killed while it wrote.
    (work / "data" / ".train-00042.tfrecord.1234.partial").write_text("half")
    assert prepare(workers=2, **flags) == 0
    assert content(output) == content(expected)
    assert list(tmp_path.iterdir()) == [output]
    for path, stat in finished.items():
        if path.stem in names:
            again = (output / path.name).stat()
            assert again.st_mtime_ns == stat.st_mtime_ns


@pytest.mark.slow
def test_learns_the_vocabulary_from_training_text(source, tmp_path, capsys):
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a", "b", "c"):
        lines = [f"{name}{i % 7}word {name} of text" for i in range(90)]
        (folder / f"{name}.txt").write_text("\n\n".join(lines))
    output = tmp_path / "data"
    flags = {
        "source": folder,
        "heldout_source": folder / "b.txt",
        "vocabulary_size": 60,
        "output": output,
    }
    assert prepare("--no_lowercase", **flags) == 0
    corpus = read_corpus(output)
    assert not corpus.lowercase
    assert {"text", "a", "a3word"} < set(corpus.vocabulary)
    # The letter b is in none but the documents that are held out.
    assert "b" not in corpus.vocabulary
    assert len(documents_of(corpus.train)) == 180
    assert len(documents_of(corpus.heldout)) == 90
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["kind"] == "text"
    assert manifest["arguments"] == {
        "source": [str(folder)],
        "heldout": None,
        "heldout_source": [str(folder / "b.txt")],
        "lines_are_documents": False,
        "seed": 0,
        "vocabulary": None,
        "vocabulary_size": 60,
        "vocabulary_megabytes": 64,
        "lowercase": False,
        "shard_megabytes": 16,
        "tfds_data_dir": None,
        "beam": None,
    }
    vocabulary = (output / "vocabulary.txt").read_bytes()
    digest = hashlib.sha256(vocabulary).hexdigest()
    assert manifest["vocabulary_sha256"] == digest
    shown = capsys.readouterr().out
    assert "held-out documents" in shown and "left out: empty doc" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"heldout": -0.1}, "`heldout` must be from 0 to 1"),
        ({"heldout": 1}, "`heldout` must be from 0 to 1"),
        ({"heldout": 0.1, "heldout_source": "x"}, "and 0 where there is"),
        ({"workers": 0}, "`workers` must be positive. Received: 0"),
        ({"shard_megabytes": -1}, "`shard_megabytes` must be positive."),
        ({"vocabulary_megabytes": 0}, "`vocabulary_megabytes` must be pos"),
        ({"source": "nowhere"}, "'nowhere': there is no such file"),
        ({"heldout_source": "nowhere"}, "'nowhere': there is no such file"),
    ],
)
def test_wrong_arguments_are_one_line(source, tmp_path, capsys, flags, message):
    flags = {"source": source[0], "output": tmp_path / "data"} | flags
    assert prepare(**flags) == 1
    error = capsys.readouterr().err
    assert error.startswith("training.prepare: error: ") and message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "vocabulary", "message"),
    [
        ('{"text": "a b"}\n{}\n', None, "a.jsonl:2: a line must be"),
        pytest.param(
            '{"text": "a"}\n',
            [*SPECIAL, "a"],
            "must give documents to train",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            '{"text": "a b"}\n',
            SPECIAL[1:],
            "Missing: [PAD]",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_fails_for_good_leaves_nothing(
    tmp_path, capsys, content, vocabulary, message
):
    source, given = tmp_path / "a.jsonl", tmp_path / "given.txt"
    source.write_text(content)
    flags = {"source": source, "heldout": 0}
    if vocabulary is not None:
        flags["vocabulary"] = given
    given.write_text("\n".join(vocabulary or SPECIAL))
    assert prepare(output=tmp_path / "data", **flags) == 1
    assert message in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == {source, given}


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error():
    with pytest.raises(ChildProcessError, match="--workers .*now 1"):
        with worker_pool(1) as pool:
            pool.submit(os._exit, 1).result()


def test_reading_waits_for_writing(tmp_path, monkeypatch):
    num_workers = 3
    # A unit for each worker and one that waits, beside them the document that
    # begins the next one, and the one that showed that it does not end it.
    bound = num_workers + 2
    lock, full = threading.Lock(), threading.Event()
    ahead, written = [], []

    def documents(tally):
        for number in range(97):
            with lock:
                ahead.append(number + 1 - len(written))
            if ahead[-1] == bound:
                full.set()
            yield "train", b"document %d" % number

    def write(work, name, documents, lowercase):
        # So slow that who does not wait is far ahead.
        assert full.wait(timeout=30)
        time.sleep(0.005)
        with lock:
            written.append(name)

    @contextlib.contextmanager
    def pool(workers):
        with concurrent.futures.ThreadPoolExecutor(workers) as threads:
            yield threads

    monkeypatch.setattr(text, "worker_pool", pool)
    monkeypatch.setattr(shards, "write_part", write)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "vocabulary.txt").touch()
    text.tokenize(
        TextConfig(
            output=tmp_path,
            source=(),
            shard_megabytes=1e-6,
            workers=num_workers,
        ),
        types.SimpleNamespace(documents=documents, num_bytes=0),
        tmp_path,
    )
    assert sorted(written) == [f"train-{n:05}" for n in range(97)]
    assert max(ahead) == bound
