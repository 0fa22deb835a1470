"""Documents out of files, folders and datasets: none lost, none invented."""

import collections
import gzip
import io
import itertools
import json
import os
import random
import re

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from training.prepare import documents, sources
from training.prepare.documents import Counts, read_text
from training.prepare.sources import (
    File,
    Sources,
    find_sources,
    sample,
    without,
)

# TensorFlow Datasets 4.9 asks protobuf 7 for what it frowns upon.
pytestmark = pytest.mark.filterwarnings(
    "ignore:label.. is deprecated:DeprecationWarning"
)


def read(content, path):
    """The documents of a file, and what was met, if it was."""
    path.write_bytes(content)
    counts = Counts()
    found = list(File(path, 0).documents(counts))
    assert counts.pop(documents.BYTES) == len(content)
    return found, {name: n for name, n in counts.items() if n}


@pytest.mark.parametrize(
    ("content", "expected", "met"),
    [
        (b"a b\nc\n\n\n d \n", [b"a b\nc", b"d"], {}),
        (b"a\r\nb\r\n\r\nc", [b"a\nb", b"c"], {}),
        (b"\xef\xbb\xbfa\n \t\nb", [b"a", b"b"], {}),
        (b"\xef\xbb\xbf\n", [], {documents.EMPTY: 1}),
        (b"\n\f\n\xe3\x80\x80\n", [], {documents.EMPTY: 1}),
        (b"a\n\x0cCHAPTER\n\x0c\nb", [b"a\nCHAPTER", b"b"], {}),
        (
            b"caf\xe9\nth\xc3\xa9 \xff\xfe\n\xff\nb",
            ["caf\nthé".encode(), b"b"],
            {documents.BAD_UTF8: 3},
        ),
    ],
)
def test_text(tmp_path, content, expected, met):
    assert read(content, tmp_path / "file") == (expected, met)
    packed = gzip.compress(content)
    assert read(packed, tmp_path / "file.txt.gz") == (expected, met)


def test_lines_that_are_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a b\nc\n\n \n d \r\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "e\\nf"}\n')
    files = find_sources([str(tmp_path)], None, lines_are_documents=True)
    found = [list(file.documents(Counts())) for file in files]
    assert found == [[b"a b", b"c", b"d"], [b"e\nf"]]


def test_jsonl(tmp_path):
    lines = [
        json.dumps({"text": "a\r\n\n b ", "id": 3}).encode(),
        b"",
        json.dumps({"text": " \n"}).encode(),
        '{"text": "th\u00e9\u2028c"}'.encode(),
        rb'{"text": "x\ud800y \ud83d\ude00"}',
        b'{"text": "z\xff"}',
    ]
    content = b"\xef\xbb\xbf" + b"\n".join(lines)
    expected = ["a\nb", "thé\u2028c", "xy 😀", "z"]
    met = {documents.EMPTY: 1, documents.BAD_UTF8: 2}
    for name, data in (
        ("a.jsonl", content),
        ("a.jsonl.gz", gzip.compress(content)),
    ):
        found = read(data, tmp_path / name)
        assert found == ([text.encode() for text in expected], met)


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"text": 3}', b"[" * 100_000])
def test_jsonl_errors_name_file_and_line(tmp_path, line):
    with pytest.raises(ValueError, match=r"a\.jsonl:3: .*`text`") as raised:
        read(b'{"text": "a"}\n\n' + line + b"\n", tmp_path / "a.jsonl")
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("length", [1, 20, 21, 42, 1000])
def test_jsonl_lines_that_are_too_long(tmp_path, monkeypatch, length):
    monkeypatch.setattr(sources, "MAX_JSON_BYTES", 20)
    long = b'{"text": "12345678"' + b" " * length + b"}"
    for end, more in ((b"\n", []), (b'\n{"text": "b"}\n', [b"b"])):
        content = b'{"text": "1234567"}\n' + long + end
        found, counts = read(content, tmp_path / "a.jsonl")
        assert found == [b"1234567", *more]
        assert counts == {documents.LONG_JSON: 1}


@pytest.mark.parametrize("damage", ["cut", "garbled", "none"])
def test_damaged_gzip_files_are_named(tmp_path, damage):
    content = gzip.compress(os.urandom(50_000).hex().encode())
    content = {
        "cut": content[:-20_000],
        "garbled": content[:9_000] + b"garbled" + content[9_007:],
        "none": b"plain text\n",
    }[damage]
    with pytest.raises(ValueError, match=r"a\.txt\.gz: damaged or cut off"):
        read(content, tmp_path / "a.txt.gz")


@pytest.mark.parametrize("size", [1, 2, 7, 64])
@pytest.mark.parametrize(
    "text", ["ab cde  fghij\tk " * 9, "猫é" * 50, "x" * 99]
)
def test_long_lines_are_cut_between_words(monkeypatch, size, text):
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", size + 3)
    counts = Counts()
    data = f"{text}\n\nend\n".encode()
    found = list(read_text(io.BytesIO(data), counts))
    assert found[-1] == b"end" and len(found) == 2
    lines = found[0].decode().split("\n")
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)
    assert all(0 < len(line.encode()) <= size + 3 for line in lines)
    assert counts == {documents.LONG_LINES: 1, documents.LONG_DOCUMENTS: 0}
    if size == 64 and " " in text:
        assert [word for line in lines for word in line.split()] == text.split()


def test_a_line_of_the_longest_length_is_not_cut(monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 5)
    for end in ("", "\n", "\nb"):
        counts = Counts()
        data = f"a b c{end}".encode()
        found = list(read_text(io.BytesIO(data), counts))
        assert found == [data.rstrip()] and not counts[documents.LONG_LINES]


def test_a_file_without_line_ends_is_streamed():
    stream = io.BytesIO(b"words " * (20 * documents.MAX_LINE_BYTES // 6))
    first = next(read_text(stream, Counts()))
    assert len(first) <= documents.MAX_DOCUMENT_BYTES
    assert stream.tell() < 6 * documents.MAX_LINE_BYTES


def test_long_documents_are_cut_between_lines(monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 10)
    counts = Counts()
    data = b"1234\n5678\n9\n\n12345\n\nabcdefghij\nk\n"
    found = list(read_text(io.BytesIO(data), counts))
    assert found == [b"1234\n5678", b"9", b"12345", b"abcdefghij", b"k"]
    assert counts[documents.LONG_DOCUMENTS] == 2


def names(sources):
    return [source.path.name for source in sources]


def test_finds_files_folders_and_globs(tmp_path):
    for name in ("b.txt", "a.jsonl", "x/c.txt.gz", "x/d.jsonl.gz", "x/e.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    (tmp_path / "[x].text").write_text("text")
    found = find_sources([str(tmp_path), str(tmp_path / "x" / "*")], None)
    assert names(found) == [
        "a.jsonl", "b.txt", "c.txt.gz", "d.jsonl.gz", "e.md",
    ]  # fmt: skip
    assert names(find_sources([str(tmp_path / "[x].text")], None)) == [
        "[x].text"
    ]
    assert found[1] == File(tmp_path / "b.txt", 4)
    with pytest.raises(FileNotFoundError, match="no such file"):
        find_sources([str(tmp_path / "*.html")], None)
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name in ("empty", "pipe.txt"):
        with pytest.raises(ValueError, match="must be text"):
            find_sources([str(tmp_path / name)], None)


def test_files_that_are_held_out_under_another_name(tmp_path, monkeypatch):
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    heldout = find_sources(["link.txt", "x/../b.txt"], None)
    left = without(find_sources([str(tmp_path)], None), heldout)
    assert names(left) == ["c.txt"]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Three TensorFlow datasets: with `text`, or one or two other strings."""
    folder = tmp_path_factory.mktemp("datasets")
    for name, features in {
        "titled": {"title": ["t"] * 5, "text": ["a\n\nb", "", "c", "d", "é"]},
        "named": {"words": ["w", "x y"], "label": [1, 2]},
        "unclear": {"one": ["w"], "other": ["x"]},
    }.items():
        first = {key: values[:1] for key, values in features.items()}
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.2.3",
            data_dir=folder,
            split_datasets={
                "train": tf.data.Dataset.from_tensor_slices(features),
                "test": tf.data.Dataset.from_tensor_slices(first),
            },
            features=tfds.features.FeaturesDict(
                {
                    key: tfds.features.Text()
                    if isinstance(values[0], str)
                    else tf.int64
                    for key, values in features.items()
                }
            ),
            disable_shuffling=True,
        )
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("titled", ["a\nb", "c", "d", "é"]),
        ("titled:train[2:]", ["c", "d", "é"]),
        ("titled:1.*.*:train+test", ["a\nb", "c", "d", "é", "a\nb"]),
        ("named", ["w", "x y"]),
    ],
)
def test_tensorflow_datasets(datasets, name, expected):
    (source,) = find_sources([f"tfds:{name}"], datasets)
    assert source.name == f"{name.partition(':')[0]}:1.2.3"
    counts = Counts()
    found = [text.decode() for text in source.documents(counts)]
    assert found == expected
    assert counts[documents.BYTES] == source.num_bytes > 0
    assert counts[documents.EMPTY] == ("" in expected) + (
        source.num_examples - len(expected)
    )
    parts = [list(part.documents(Counts())) for part in source.parts()]
    assert [t.decode() for t in itertools.chain(*parts)] == expected


@pytest.mark.parametrize(
    ("name", "heldout", "count"),
    [
        ("titled", "titled:1.2.3:train", 0),
        ("titled", "titled:test", 1),
        ("titled:train[:2]", "titled:train[2:]", 1),
        ("titled:train[:3]", "titled:train[2:]", None),
        ("titled:test+train", "titled:train[:1]", None),
        ("titled", "named", 1),
    ],
)
def test_datasets_that_are_held_out(datasets, name, heldout, count):
    found, others = (
        find_sources([f"tfds:{name}"], datasets) for name in (name, heldout)
    )
    if count is None:
        with pytest.raises(ValueError, match="`heldout_source` must be one"):
            without(found, others)
    else:
        assert len(without(found, others)) == count


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unclear", r"one string\. .*'one', 'other'"),
        ("titled:dev", "Unknown split 'dev'"),
        ("no_such_dataset", "`source` 'tfds:no_such_dataset': .*not found"),
        ("", r"must be tfds:NAME\["),
    ],
)
def test_wrong_datasets(datasets, name, message):
    with pytest.raises(ValueError, match=message):
        find_sources([f"tfds:{name}"], datasets)


def test_a_dataset_that_is_damaged_is_named(datasets):
    (source,) = find_sources(["tfds:named"], datasets)
    (path,) = datasets.glob("named/1.2.3/named-train.tfrecord-*")
    content = path.read_bytes()
    path.write_bytes(content[:-3] + b"abc")
    try:
        with pytest.raises(OSError, match="tfds:named:1.2.3:train: cannot be"):
            list(source.documents(Counts()))
    finally:
        path.write_bytes(content)


def test_held_out_documents(tmp_path):
    paths = []
    for name in "ab":
        paths.append(tmp_path / f"{name}.txt")
        paths[-1].write_text(
            "\n\n".join(f"document {i}" for i in range(3_000)) + f"\n\n{name}"
        )
    train, heldout = ([File(path, 1)] for path in paths)

    def splits(part, seed, files=train, rest=()):
        found = Sources(list(files), list(rest), part, seed).documents(Counts())
        pairs = list(found)
        sizes = collections.Counter(split for split, _ in pairs)
        return {document: split for split, document in pairs}, sizes

    by_document, sizes = splits(0.2, seed=3)
    # A binomial with a standard deviation of 22.
    assert abs(sizes["heldout"] - 600) < 100
    assert splits(0.2, seed=4)[0] != by_document
    # The same in other company, and twice on the same side.
    twice, sizes_twice = splits(0.2, 3, files=[*heldout, *train])
    assert twice.items() >= by_document.items()
    assert sizes_twice["heldout"] in range(
        2 * sizes["heldout"] - 2, 2 * sizes["heldout"] + 3
    )
    _, whole = splits(0.0, 3, rest=heldout)
    assert whole == {"train": 3_001, "heldout": 3_001}


def test_sample_stays_small():
    draw = random.Random(3)
    drawn = [draw.randbytes(draw.randint(1, 31)) for _ in range(499)]
    sizes = [
        sum(map(len, sample(drawn[:count], 1009, seed=5)))
        for count in range(1, len(drawn))
    ]
    assert max(sizes) <= 1009
    # And full, but for less than the document put out last.
    assert min(sizes[200:]) > 1009 - 31
    # One alone may be longer.
    documents = [b"a document", b"another document", b"the third one"]
    for count in (1, 2, 3):
        assert len(sample(documents[:count], 7, seed=5)) == 1
