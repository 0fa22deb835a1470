"""Named datasets: another kind serves every reader of sources."""

import dataclasses

import pytest

from training.corpus import datasets
from training.corpus.pairs import Pair, read_jsonl
from training.corpus.squad import Answer, Question, read_questions
from training.corpus.texts import read_examples, read_texts
from training.prepare.documents import Tally
from training.prepare.sources import find_sources

RECORDS = {
    "texts": [{"text": " red", "title": "one"}, {"text": "", "title": ""}],
    "labelled": [
        {"sentence": "red", "label": "no", "more": 3},
        {"sentence": "green", "label": "yes", "more": 5},
    ],
    "pairs": [
        {"query": "one", "document": "red"},
        {"anchor": "two", "positive": "green", "negatives": ["blue"]},
    ],
    "squad": [
        {
            "id": "q",
            "question": "Who?",
            "context": "A cat",
            "answers": {"text": ["cat"], "answer_start": [2]},
        }
    ],
}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Records of `RECORDS`, with the methods of `TfdsSplit`."""

    name: str
    first: int = 0
    num_bytes: int = 100
    num_examples: int = 2

    @classmethod
    def open(cls, name, argument, data_dir):
        return cls(name)

    @staticmethod
    def short_name(name):
        return name

    def columns(self):
        return {name for record in RECORDS[self.name] for name in record}

    def strings(self):
        return {name for name in self.columns() if name != "more"}

    def records(self, columns):
        for record in RECORDS[self.name][self.first :]:
            yield {name: record[name] for name in columns if name in record}

    def texts(self, column):
        for record in self.records([column]):
            yield record[column].encode()

    def parts(self):
        return [self]

    def overlaps(self, other):
        return False


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    monkeypatch.setitem(datasets.KINDS, "memory", Memory)


def test_every_reader_takes_another_kind():
    said = []
    assert read_texts("memory:texts", say=said.append) == ["one  red"]
    assert said == ["memory:texts: 1 left out as blank"]
    examples = read_examples("memory:labelled")
    assert (examples.first, examples.names) == (["red", "green"], ("no", "yes"))
    assert read_jsonl("memory:pairs") == [
        Pair("0", "one", "red"),
        Pair("1", "two", "green", ("blue",)),
    ]
    assert read_questions("memory:squad") == [
        Question("q", "Who?", "A cat", (Answer("cat", 2),))
    ]
    (source,) = find_sources(["memory:texts"], None)
    assert list(source.documents(Tally())) == [b"red"]
    assert datasets.source_name("memory:texts") == "texts"


@pytest.mark.parametrize(
    ("read", "name", "message"),
    [
        (read_texts, "squad", "memory:squad: must have the column text"),
        (read_examples, "pairs", "memory:pairs: must have the columns"),
        (read_jsonl, "texts", r"memory:texts\[0\]: a line must have 'query'"),
        (read_questions, "texts", "memory:texts: must have SQuAD's features"),
    ],
)
def test_missing_columns_are_named(read, name, message):
    with pytest.raises(ValueError, match=message):
        read(f"memory:{name}")


def test_another_name_is_a_file():
    with pytest.raises(FileNotFoundError, match="other:texts"):
        read_texts("other:texts")
    with pytest.raises(ValueError, match="begin with tfds:, memory:"):
        read_examples("other:texts")
