"""The verb `training.prepare text`: whole, resumable, the same everywhere."""

import collections
import concurrent.futures
import contextlib
import gzip
import hashlib
import json
import os
import random
import time
import types

import psutil
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.training import tiny, workers
from tests.training.prepare import command
from tests.training.prepare.command import content
from training.corpus.tokenized import read_corpus
from training.prepare import shards, text

WORDS = ["the", "cat", "café", "Dog", "runs", "eats", "reading", ".", "猫"]


def prepare(*words, **flags):
    return command.prepare("text", *words, **flags)


def start(**flags):
    """Starts the command in a process of its own."""
    words = command.args("text", **flags)
    return workers.start("-m", "training.prepare", *words)


@pytest.fixture(scope="module", autouse=True)
def threads():
    """Stand in for worker processes, which take seconds to start."""
    with pytest.MonkeyPatch.context() as patched:
        pool = concurrent.futures.ThreadPoolExecutor
        patched.setattr(text, "worker_pool", pool)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of every kind of file, and the good documents in it."""
    folder = tmp_path_factory.mktemp("source")
    draw = random.Random(3)
    documents = [
        [
            " ".join(draw.choices(WORDS, k=draw.randint(2, 30)))
            for _ in range(draw.randint(1, 4))
        ]
        for _ in range(331)
    ]
    joined = ["\n".join(document) + "\n\n" for document in documents]
    (folder / "a.txt").write_text(
        "".join(joined[:97]) + "one\n\n\u200b\nthe cat"
    )
    (folder / "b.jsonl").write_text(
        "".join(json.dumps({"text": d}) + "\n" for d in joined[97:200])
        + '{"text": ""}\n'
    )
    with gzip.open(folder / "c.txt.gz", "wb") as stream:
        stream.write("".join(joined[200:]).encode() + b"the cat\xff\n\xad\n")
    cat = ["the cat"]
    return folder, [*documents[:97], cat, *documents[97:], cat]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "given.txt"
    words = ["the", "cat", "cafe", "dog", "run", "##s", ".", "o"]
    path.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    return path


@pytest.fixture(scope="module")
def made(source, vocabulary, tmp_path_factory):
    """A run that nothing interrupts, of one document a shard."""
    output = tmp_path_factory.mktemp("made") / "new" / "data"
    flags = {
        "source": source[0],
        "vocabulary": vocabulary,
        "heldout": 0.2,
        "shard_megabytes": 0.0001,
        "seed": 5,
    }
    assert prepare(output=output, workers=3, **flags) == 0
    assert list(output.parent.iterdir()) == [output]
    return output, flags


def documents_of(shards):
    """The lines of ids of the documents, in order."""
    found = []
    paths = [str(shard.path) for shard in shards]
    for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        ids = iter(features["token_ids"].int64_list.value)
        lengths = features["line_lengths"].int64_list.value
        found.append([[next(ids) for _ in range(n)] for n in lengths])
        assert not list(ids)
    return found


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

    counts = collections.Counter()
    for lines, ids in zip(source[1], expected):
        split = "held-out" if str(ids) in held_out else "training"
        counts[f"{split} documents"] += 1
        counts[f"{split} words"] += sum(len(line.split()) for line in lines)
        counts[f"{split} tokens"] += sum(map(len, ids))
    assert (
        sum(shard.words for shard in corpus.train) == counts["training words"]
    )
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["counts"].pop("unknown tokens") > 0
    assert manifest["counts"] == counts | {
        "lines": sum(map(len, expected)),
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


@contextlib.contextmanager
def touched(path):
    before = path.stat()
    os.utime(path)
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_made_before_of_the_same_files(made, source, capsys):
    output, flags = made
    before = content(output)
    with touched(source[0] / "a.txt"):
        assert prepare(output=output, **flags) == 1
        assert "made with other files" in capsys.readouterr().err
    # What it was made of need not be there any more.
    aside = source[0].rename(source[0].with_name("aside"))
    assert prepare(output=output, workers=3, **flags) == 0
    aside.rename(source[0])
    assert content(output) == before


def test_an_unfinished_run_goes_on(
    made, source, vocabulary, tmp_path, capsys, monkeypatch
):
    expected, flags = made
    output, work = tmp_path / "data", tmp_path / ".data.partial"
    flags = flags | {"output": output, "workers": 1}
    write = shards.write_part

    def write_some(work, name, documents, lowercase):
        if name == "train-00041":
            # Not two at a time.
            assert prepare(**flags) == 1
            assert "by another process" in capsys.readouterr().err
            raise OSError("no space left")
        write(work, name, documents, lowercase)

    with monkeypatch.context() as patched:
        patched.setattr(shards, "write_part", write_some)
        assert prepare(**flags) == 1
    assert "the same command continues" in capsys.readouterr().err
    finished = {
        path.stem: (work / "data" / f"{path.stem}.tfrecord").stat().st_mtime_ns
        for path in work.glob("parts/*.json")
    }
    assert len(finished) > 40 and not output.exists()
    for changed, message in (
        (None, "differs in seed"),
        (source[0] / "a.txt", "differs in files"),
        (vocabulary, "differs in files"),
    ):
        with touched(changed) if changed else contextlib.nullcontext():
            assert prepare(**flags | ({} if changed else {"seed": 6})) == 1
            assert message in capsys.readouterr().err

    # What a worker left that was killed while it wrote.
    (work / "data" / ".train-00042.tfrecord.1234.partial").write_text("half")
    assert prepare(**flags) == 0
    assert content(output) == content(expected)
    assert list(tmp_path.iterdir()) == [output]
    for name, time_written in finished.items():
        path = output / f"{name}.tfrecord"
        assert path.stat().st_mtime_ns == time_written


@pytest.mark.slow
def test_killed_and_continued(made, tmp_path):
    """In processes, which end with the one that started them."""
    expected, flags = made
    flags = flags | {"output": tmp_path / "data"}
    run = start(workers=1, **flags)
    while len(list(tmp_path.glob(".data.partial/parts/*.json"))) < 40:
        assert run.poll() is None
        time.sleep(0.01)
    children = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert children and not alive
    assert start(workers=2, **flags).wait() == 0
    assert content(tmp_path / "data") == content(expected)


def test_output_among_the_sources(source, vocabulary, capsys):
    folder, _ = source
    for named in (folder, folder.with_name("sour*")):
        flags = {"source": named, "vocabulary": vocabulary}
        assert prepare(output=folder / "x" / "data", **flags) == 1
        assert "must lie outside" in capsys.readouterr().err
    assert not (folder / "x").exists()


def test_learns_the_vocabulary_from_training_text(tmp_path, capsys):
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a", "b", "c"):
        lines = [f"{name}{i % 7}word {name} of text" for i in range(90)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    output = tmp_path / "data"
    flags = {
        "source": folder,
        "heldout_source": folder / "b.txt",
        "vocabulary_size": 60,
        "output": output,
    }
    assert prepare("--no_lowercase", "--lines_are_documents", **flags) == 0
    corpus = read_corpus(output)
    assert not corpus.lowercase
    assert {"text", "a", "a3word"} < set(corpus.vocabulary)
    # The letter b is in none but the documents that are held out.
    assert "b" not in corpus.vocabulary
    assert len(documents_of(corpus.train)) == 180
    assert len(documents_of(corpus.heldout)) == 90
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["kind"] == "text"
    assert manifest["arguments"]["source"] == [str(folder)]
    vocabulary = (output / "vocabulary.txt").read_bytes()
    digest = hashlib.sha256(vocabulary).hexdigest()
    assert manifest["vocabulary_sha256"] == digest
    shown = capsys.readouterr().out
    assert "held-out documents" in shown and "left out: empty doc" in shown


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"heldout": 1}, "`heldout` must be from 0 to 1"),
        ({"heldout": 0.1, "heldout_source": "x"}, "and 0 where there is"),
        ({"workers": 0}, "`workers` must be positive. Received: 0"),
    ],
)
def test_wrong_arguments_are_one_line(source, tmp_path, capsys, flags, message):
    flags = {"source": source[0], "output": tmp_path / "data"} | flags
    assert prepare(**flags) == 1
    assert message in tiny.error(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "vocabulary", "message"),
    [
        ('{"text": "a b"}\n{}\n', None, "a.jsonl:2: a line must be"),
        ('{"text": "a"}\n', [*SPECIAL_TOKENS, "a"], "must give documents to"),
        ('{"text": "a b"}\n', SPECIAL_TOKENS[1:], "[PAD]"),
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
    given.write_text("\n".join(vocabulary or SPECIAL_TOKENS))
    assert prepare(output=tmp_path / "data", **flags) == 1
    assert message in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == {source, given}


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error():
    with pytest.raises(ChildProcessError, match="--workers .*now 1"):
        with shards.worker_pool(1) as pool:
            pool.submit(os._exit, 1).result()


def test_reading_waits_for_writing(tmp_path):
    unfinished = set()

    class Pool:
        def submit(self, write, work, name, documents, lowercase):
            unfinished.add(name)
            return types.SimpleNamespace(result=lambda: unfinished.remove(name))

    def read():
        for number in range(97):
            assert len(unfinished) < 3
            yield f"train-{number:05}", []

    shards.write_shards(read(), tmp_path, True, Pool(), max_pending=3)
    assert not unfinished


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Beam warns of missing packages
def test_beam_makes_the_same_documents(made, tmp_path, monkeypatch):
    from training.prepare import beam

    expected, flags = made
    output = tmp_path / "data"
    flags = flags | {"output": output, "beam": "runner=DirectRunner"}
    write = beam.write_part

    def write_some(work, name, documents, lowercase):
        if name == "train-00003":
            raise OSError("no space left")
        write(work, name, documents, lowercase)

    with monkeypatch.context() as patched:
        patched.setattr(beam, "write_part", write_some)
        assert prepare(**flags) == 1
    written = {
        (path.name, path.stat().st_mtime_ns)
        for path in tmp_path.glob(".data.partial/data/*-0*")
    }
    assert prepare(**flags) == 0
    # Some are empty, and so removed in the end.
    kept = {(path.name, path.stat().st_mtime_ns) for path in output.glob("*")}
    assert len(written & kept) > len(written) / 2
    manifests = [
        json.loads((folder / "manifest.json").read_text())
        for folder in (expected, output)
    ]
    for name in ("counts", "left_out", "vocabulary_sha256", "versions"):
        assert manifests[0][name] == manifests[1][name]
    corpora = [read_corpus(folder) for folder in (expected, output)]
    for split in ("train", "heldout"):
        ours, beams = (getattr(corpus, split) for corpus in corpora)
        assert 1 < len(beams) < len(ours)
        assert sorted(documents_of(beams)) == sorted(documents_of(ours))
    assert list(tmp_path.iterdir()) == [output]
