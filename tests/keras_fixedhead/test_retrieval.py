"""Search, BM25 and fusion against their definitions in NumPy."""

import math
import sys

import numpy as np
import pytest

from keras_fixedhead.retrieval import (
    Ranking,
    bm25,
    build_index,
    reciprocal_rank_fusion,
    search_index,
)

pytestmark = pytest.mark.any_backend

DOCUMENTS = [
    "Walking cats and walking dogs",
    "A cat sleeps",
    "Dogs run, cats sleep, and the fox is quick",
    "Nothing of interest",
    "The fox walks",
]


def random(*shape):
    return np.random.default_rng(3).normal(size=shape).astype("float32")


def ranking(rows):
    rows = np.array(rows)
    return Ranking(rows, -np.tile(np.arange(rows.shape[1]), (len(rows), 1)))


@pytest.mark.parametrize("k", [1, 5, 11])
def test_exact_search(k):
    documents, queries = random(11, 7), random(13, 7)[::-1]
    found = search_index(build_index(documents), queries, k)
    scores = queries @ documents.T
    expected = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(found.documents, expected)
    np.testing.assert_allclose(
        found.scores, np.take_along_axis(scores, expected, 1), atol=1e-5
    )
    assert found.scores.dtype == "float32"


def test_exact_search_of_fewer_documents_than_asked_for():
    found = search_index(build_index(random(3, 7)), random(2, 7), 5)
    assert found.documents.shape == found.scores.shape == (2, 3)
    assert found.documents.min() == 0


@pytest.mark.parametrize(
    "embeddings, message",
    [
        (np.zeros(7), r"shape \(7,\)"),
        (np.full((2, 7), np.nan), "14 not finite"),
        (np.zeros((2, 5)), r"width, 7. Received: shape \(2, 5\)"),
    ],
)
def test_exact_search_refuses(embeddings, message):
    index = build_index(random(3, 7))
    with pytest.raises(ValueError, match=message):
        search_index(index, embeddings, 1)


def test_index_needs_documents():
    with pytest.raises(ValueError, match=r"at least one.*\(0, 7\)"):
        build_index(np.zeros((0, 7)))


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


def test_bm25_of_fewer_documents_than_asked_for():
    assert bm25(DOCUMENTS, ["cat"], 7).documents.shape == (1, 5)
    assert bm25(DOCUMENTS, ["", "the"], 2).documents.tolist() == [[-1, -1]] * 2


def test_bm25_needs_words():
    with pytest.raises(ValueError, match="2 documents with none"):
        bm25(["the", ""], ["cat"], 1)


def test_fusion_by_hand():
    fused = reciprocal_rank_fusion(
        [ranking([[4, 2, 7], [1, 0, 5]]), ranking([[2, 9], [-1, -1]])], 5
    )
    assert fused.documents.tolist() == [[2, 4, 9, 7, -1], [1, 0, 5, -1, -1]]
    np.testing.assert_allclose(
        fused.scores,
        [
            [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63, -np.inf],
            [1 / 61, 1 / 62, 1 / 63, -np.inf, -np.inf],
        ],
        rtol=1e-6,
    )


def test_fusion_of_one_ranking_is_its_head():
    one = ranking([np.random.default_rng(0).permutation(17)])
    fused = reciprocal_rank_fusion([one], 5)
    np.testing.assert_array_equal(fused.documents, one.documents[:, :5])


def test_fusion_finds_what_is_deep_in_both():
    first = [*range(100, 130), 7]
    second = [*range(200, 230), 7]
    fused = reciprocal_rank_fusion([ranking([first]), ranking([second])], 1)
    assert fused.documents.tolist() == [[7]]


def test_fusion_refuses():
    with pytest.raises(ValueError, match=r"\[\(1, 2\), \(2, 2\)\]"):
        reciprocal_rank_fusion(
            [ranking([[1, 2]]), ranking([[1, 2], [3, 4]])], 1
        )
    with pytest.raises(ValueError, match="one or more"):
        reciprocal_rank_fusion([], 1)


@pytest.mark.parametrize("k", [0, -1])
def test_k_must_be_positive(k):
    with pytest.raises(ValueError, match=f"`k` must be positive.*{k}"):
        search_index(build_index(random(3, 7)), random(2, 7), k)
    with pytest.raises(ValueError, match=f"`k` must be positive.*{k}"):
        bm25(DOCUMENTS, ["cat"], k)
    with pytest.raises(ValueError, match=f"`k` must be positive.*{k}"):
        reciprocal_rank_fusion([ranking([[1, 2]])], k)


@pytest.mark.parametrize("module", ["faiss", "bm25s", "Stemmer"])
def test_names_the_extra_that_is_missing(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"fixedhead\[retrieval\]"):
        build_index(random(3, 7))
        bm25(DOCUMENTS, ["cat"], 1)
