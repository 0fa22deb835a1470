"""A source of every kind of file, and what is made of it."""

import gzip
import json
import random

import pytest

from tests.training.prepare.verb import SPECIAL, flags_of
from training.prepare.__main__ import main

WORDS = ["the", "cat", "café", "Dog", "runs", "eats", "reading", ".", "猫"]


def text(draw, lines):
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(2, 30)))
        for _ in range(lines)
    ]


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "given.txt"
    known = [*SPECIAL, "the", "cat", "cafe", "dog", "run", "##s", ".", "o"]
    path.write_text("".join(f"{token}\n" for token in known))
    return path


@pytest.fixture(scope="session")
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
    assert main(["text", *flags_of(output=output, workers=1, **flags)]) == 0
    assert list(output.parent.iterdir()) == [output]
    return output, flags
