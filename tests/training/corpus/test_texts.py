"""Texts from files, and as inputs of an encoder."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.training import tiny
from training.corpus.texts import read_texts
from training.engine.global_batch import tokenized


def test_a_text_a_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("\n red \n\t\n中 é\r\nlast".encode())
    assert read_texts(path) == ["red", "中 é", "last"]
    assert read_texts(path, 2) == ["red", "中 é"]
    assert read_texts(str(path), 5) == ["red", "中 é", "last"]


def test_texts_of_json_lines(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [
        {"_id": "a", "title": "one", "text": "red"},
        {"title": "", "text": " blue\n"},
        {"text": " "},
        {"title": "two", "text": ""},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert read_texts(path) == ["one red", "blue", "two"]
    said = []
    read_texts(path, say=said.append)
    assert said == [f"{path}: 1 left out as blank"]
    # What comes later is not looked at.
    with open(path, "a") as lines:
        lines.write('{"title": "three"}\n')
    assert read_texts(path, 3) == ["one red", "blue", "two"]
    with pytest.raises(ValueError, match=r"corpus.jsonl:5: 'text'"):
        read_texts(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"", "a.txt has no text in it"),
        ("b.txt", b" \n\n", "b.txt has no text in it"),
        ("c.txt", b"red\n\xe9\n", "c.txt is not UTF-8"),
        ("d.jsonl", b'{"text": "\xe9"}', "d.jsonl:1: .* UTF-8"),
        ("e.jsonl", b"red", "e.jsonl:1: .* JSON"),
        ("f.jsonl", b'{"text": 3}', "f.jsonl:1: 'text' .* Received: 3"),
        ("g.jsonl", b'{"title": 3, "text": ""}', "g.jsonl:1: 'title'"),
        ("h.jsonl", b"\n", "h.jsonl has no text in it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_text_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_texts(tmp_path / name)


def test_missing_file(tmp_path):
    with pytest.raises(OSError, match="missing.txt"):
        read_texts(tmp_path / "missing.txt")


def test_tokenized_to_one_size_or_the_longest():
    preprocessor = tiny.embedder(prompts={"query": "one two "}).preprocessor
    texts = tf.constant(["red", "green blue", "cat " * 19])
    longest, fixed = (
        tokenized(preprocessor, texts[:2], "query", 13, fixed_size)
        for fixed_size in (False, True)
    )
    assert longest["token_ids"].shape == (2, 6)
    for name, values in longest.items():
        assert fixed[name].shape == (2, 13)
        np.testing.assert_array_equal(fixed[name][:, :6], values)
        assert not np.any(fixed[name][:, 6:])  # [PAD] is the first
    cut = tokenized(preprocessor, texts, None, 7, fixed_size=False)
    assert cut["token_ids"].shape == (3, 7)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def in_graph(text):
        features = tokenized(preprocessor, text, None, 7, fixed_size=True)
        # XLA compiles for sizes it knows.
        assert [x.shape.as_list() for x in features.values()] == [[None, 7]] * 3
        return features

    for name, values in in_graph(texts).items():
        np.testing.assert_array_equal(values, cut[name])
