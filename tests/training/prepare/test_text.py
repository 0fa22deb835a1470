"""The verb `training.prepare text`: whole, resumable, the same everywhere."""

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import psutil
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from training.corpus.tokenized import read_corpus
from training.prepare.__main__ import main
from training.prepare.workers import worker_pool

ROOT = pathlib.Path(__file__).parents[3]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "café", "Dog", "runs", "eats", "reading", ".", "猫"]


def text(draw, lines):
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(2, 30)))
        for _ in range(lines)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of every kind of file, and the good documents in it."""
    folder = tmp_path_factory.mktemp("source")
    draw = random.Random(3)
    documents = [text(draw, draw.randint(1, 4)) for _ in range(331)]
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
    known = [*SPECIAL, "the", "cat", "cafe", "dog", "run", "##s", ".", "o"]
    path.write_text("".join(f"{token}\n" for token in known))
    return path


def arguments(*args, **flags):
    flags = [
        word
        for name, value in flags.items()
        for word in (f"--{name}", str(value))
    ]
    return ["text", *map(str, args), *flags]


def command(*args, **flags):
    return [
        sys.executable, "-m", "training.prepare", *arguments(*args, **flags)
    ]  # fmt: skip


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    assert main(arguments(output=output, workers=1, **flags)) == 0
    assert list(output.parent.iterdir()) == [output]
    return output, flags


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
    assert main(arguments(output=output, workers=3, **flags)) == 0
    assert "made before" in capsys.readouterr().out
    assert main(arguments(output=output, **flags | {"seed": 6})) == 1
    assert "--overwrite" in capsys.readouterr().err
    path = source[0] / "a.txt"
    with touched(path):
        assert main(arguments(output=output, **flags)) == 1
        assert "files that have changed" in capsys.readouterr().err
    # What it was made of need not be there any more.
    aside = source[0].rename(source[0].with_name("aside"))
    assert main(arguments(output=output, **flags)) == 0
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


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_output_among_the_sources(source, vocabulary, capsys):
    folder, _ = source
    for named in (folder, folder.with_name("sour*")):
        flags = {"source": named, "vocabulary": vocabulary}
        assert main(arguments(output=folder / "x" / "data", **flags)) == 1
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
        assert main(arguments(**flags)) == 1
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

    assert main(arguments(**flags | {"seed": 6})) == 1
    assert "differs in seed" in capsys.readouterr().err
    with touched(source[0] / "a.txt"):
        assert main(arguments(**flags)) == 1
        assert "differs in sources" in capsys.readouterr().err

    given = flags["vocabulary"]
    with touched(given):
        assert main(arguments(**flags)) == 1
        assert "differs in files" in capsys.readouterr().err

    # What a worker left that was killed while it wrote.
    (work / "data" / ".train-00042.tfrecord.1234.partial").write_text("half")
    assert main(arguments(workers=2, **flags)) == 0
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
    assert main(arguments("--no_lowercase", **flags)) == 0
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
    assert main(arguments(**flags)) == 1
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
    assert main(arguments(output=tmp_path / "data", **flags)) == 1
    assert message in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == {source, given}


@pytest.mark.slow
@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error():
    with pytest.raises(ChildProcessError, match="--workers .*now 1"):
        with worker_pool(1) as pool:
            pool.submit(os._exit, 1).result()


@pytest.mark.slow
@pytest.mark.parametrize("runner", [None, "DirectRunner"])
def test_lines_that_are_documents(tmp_path, vocabulary, runner):
    lines = ["the cat runs.", "cats", "the dog.", "the cat runs.", "a cat."]
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.tokens").write_text("\n".join([*lines, "", ""]))
        lines = lines[::2]
    output = tmp_path / "data"
    flags = {
        "source": tmp_path / "train.tokens",
        "heldout_source": tmp_path / "heldout.tokens",
        "vocabulary": vocabulary,
        "output": output,
    }
    if runner:
        flags["beam"] = f"runner={runner}"
    # In a process of its own: Beam warns of what is not installed.
    subprocess.run(
        command("--lines_are_documents", **flags), cwd=ROOT, check=True
    )
    corpus = read_corpus(output)
    for shards, documents, words in (
        (corpus.train, 5, 11),
        (corpus.heldout, 3, 7),
    ):
        assert len(documents_of(shards)) == documents
        assert sum(shard.words for shard in shards) == words
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["arguments"]["lines_are_documents"] is True


@pytest.mark.slow
def test_beam_makes_the_same_documents(made, tmp_path):
    expected, flags = made
    output = tmp_path / "data"
    # In a process of its own: Beam warns of what is not installed.
    subprocess.run(
        command(output=output, beam="runner=DirectRunner", **flags),
        cwd=ROOT,
        check=True,
    )
    manifests = [
        json.loads((folder / "manifest.json").read_text())
        for folder in (expected, output)
    ]
    for name in ("counts", "left_out", "vocabulary_sha256", "versions"):
        assert manifests[0][name] == manifests[1][name]
    corpora = [read_corpus(folder) for folder in (expected, output)]
    for split in ("train", "heldout"):
        shards, beams = (getattr(corpus, split) for corpus in corpora)
        assert 1 < len(beams) < len(shards)
        assert sorted(documents_of(beams)) == sorted(documents_of(shards))
    assert list(tmp_path.iterdir()) == [output]
