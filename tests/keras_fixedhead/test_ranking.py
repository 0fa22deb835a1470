"""BM25 against its formula, in memory and from disk."""

import logging
import math
import sys

import numpy as np
import pytest

from keras_fixedhead.ranking import BM25
from keras_fixedhead.retrieval import bm25

pytestmark = pytest.mark.any_backend

DOCUMENTS = [
    "Walking cats and walking dogs",
    "A cat sleeps",
    "Dogs run, cats sleep, and the fox is quick",
    "Nothing of interest",
    "The fox walks",
]


def test_bm25_is_lucenes():
    k1, b = 1.2, 0.6
    found = bm25(DOCUMENTS, ["walking the cat", "fox", "zebra"], 5, k1, b)
    words = [
        ["walk", "cat", "walk", "dog"],
        ["cat", "sleep"],
        ["dog", "run", "cat", "sleep", "fox", "quick"],
        ["noth", "interest"],
        ["fox", "walk"],
    ]
    mean = np.mean([len(document) for document in words])

    def score(query, document):
        total = 0.0
        for word in query:
            having = sum(word in other for other in words)
            weight = math.log(1 + (5 - having + 0.5) / (having + 0.5))
            count = document.count(word)
            length = k1 * (1 - b + b * len(document) / mean)
            total += weight * count / (count + length)
        return total

    for row, query in enumerate((["walk", "cat"], ["fox"], ["zebra"])):
        scores = np.array([score(query, document) for document in words])
        order = [i for i in np.argsort(-scores, stable=True) if scores[i] > 0]
        rest = 5 - len(order)
        assert found.documents[row].tolist() == order + [-1] * rest
        np.testing.assert_allclose(
            found.scores[row],
            np.r_[scores[order], np.full(rest, -np.inf)],
            rtol=1e-5,
        )


def test_bm25_from_disk(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    queries = ["walking the cat", "fox", "zebra", ""]
    # An iterator, as of documents that do not fit into memory.
    made = BM25(iter(DOCUMENTS), 1.2, 0.6)
    made.save(tmp_path / "bm25")
    found = BM25.load(tmp_path / "bm25").search(queries, 3)
    wanted = bm25(DOCUMENTS, queries, 3, 1.2, 0.6)
    np.testing.assert_array_equal(found.documents, wanted.documents)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert not caplog.records


def test_bm25_of_fewer_documents_than_asked_for():
    assert bm25(DOCUMENTS, ["cat"], 7).documents.shape == (1, 5)
    assert bm25(DOCUMENTS, ["", "the"], 2).documents.tolist() == [[-1, -1]] * 2


def test_bm25_needs_words():
    with pytest.raises(ValueError, match="2 documents with none"):
        bm25(["the", ""], ["cat"], 1)


@pytest.mark.parametrize("k", [0, -1])
def test_k_must_be_positive(k):
    with pytest.raises(ValueError, match=f"`k` must be a positive.*{k}"):
        bm25(DOCUMENTS, ["cat"], k)


@pytest.mark.parametrize("module", ["bm25s", "Stemmer"])
def test_names_the_extra_that_is_missing(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"fixedhead\[retrieval\]"):
        bm25(DOCUMENTS, ["cat"], 1)
