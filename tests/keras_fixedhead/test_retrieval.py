"""Indexes, BM25 and fusion against their definitions in NumPy."""

import logging
import math
import sys

import faiss
import numpy as np
import pytest

from keras_fixedhead.retrieval import (
    BM25,
    PRECISIONS,
    Ranking,
    build_index,
    bytes_per_document,
    new_index,
    principal_components,
    reciprocal_rank_fusion,
    search_index,
)

pytestmark = pytest.mark.any_backend

TEXTS = [
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


def check_best(found, scores, k, **tolerance):
    expected = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(found.documents, expected)
    np.testing.assert_allclose(
        found.scores, np.take_along_axis(scores, expected, 1), **tolerance
    )


@pytest.mark.parametrize("k", [1, 5, 13])  # there are 11
def test_exact_search(k):
    documents, queries = random(11, 7), random(13, 7)[::-1]
    found = search_index(build_index(documents), queries, k)
    check_best(found, queries @ documents.T, k, atol=1e-5)
    assert found.scores.dtype == "float32"


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


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def clustered(count, width=29):
    """Rows of length 1 that lie around a few directions, as texts do."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(11, width)) + 1
    rows = centres[rng.integers(11, size=count)]
    scales = np.geomspace(1, 0.1, width)
    noise = rng.normal(size=(count, width)) * scales
    return unit(rows * scales + noise).astype("float32")


def shares_found(found, scores, k=5):
    """The share of the best documents that are among those found."""
    best = np.argsort(-scores, axis=1)[:, :k]
    return np.mean(
        [len(np.intersect1d(a, b)) / k for a, b in zip(found[:, :k], best)]
    )


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("reduction", ["truncate", "pca"])
def test_reduced_by_numpy(reduction, normalized):
    rows = clustered(53) * (1 if normalized else 3)
    documents, queries = np.split(rows, [43])
    index = build_index(documents, dimension=7, reduction=reduction)
    if reduction == "pca":
        directions = np.linalg.svd(documents.astype("float64"))[2][:7].T
    else:
        directions = np.eye(29)[:, :7]
    kept, asked = documents @ directions, queries @ directions
    if normalized:
        kept, asked = unit(kept), unit(asked)
    check_best(search_index(index, queries, 5), asked @ kept.T, 5, rtol=1e-4)


def test_zero_rows_have_no_length():
    rows = clustered(13)
    rows[3] = 0
    index = build_index(rows, dimension=7)
    best = search_index(index, rows[:3], 1)
    np.testing.assert_allclose(best.scores, 1, rtol=1e-5)


def test_int8_is_within_half_a_step():
    documents, queries = clustered(61)[:43], clustered(61)[43:]
    found = search_index(build_index(documents, precision="int8"), queries, 43)
    scores = np.take_along_axis(queries @ documents.T, found.documents, 1)
    step = np.ptp(documents, axis=0) / 255
    bound = np.abs(queries) @ step / 2
    error = np.abs(found.scores - scores)
    assert (error <= bound[:, None] + 1e-6).all()
    assert error.max() > bound.max() / 100


def test_binary_estimates_inner_products_by_hand():
    """RaBitQ's estimate, from the bits and the two numbers of a document."""
    documents, queries = clustered(61)[:43], clustered(61)[43:]
    index = build_index(documents, precision="binary")
    found = search_index(index, queries, 43)
    transform = faiss.downcast_VectorTransform(index.chain.at(0))
    turned, asked = transform.apply(documents), transform.apply(queries)
    # It only turns.
    np.testing.assert_allclose(
        asked @ turned.T, queries @ documents.T, atol=1e-6
    )
    centre = turned.mean(axis=0)
    rest = turned - centre
    bits = np.sign(rest)
    # The sides, as long as to have the right product with their own document.
    length = (rest**2).sum(1) / np.abs(rest).sum(1)
    scores = (
        (asked @ centre)[:, None]
        + (asked - centre) @ (bits * length[:, None]).T
        + (rest @ centre)[None]
    )
    np.testing.assert_allclose(
        found.scores,
        np.take_along_axis(scores, found.documents, 1),
        atol=0.01,  # of the query's 8 bits
    )
    assert shares_found(found.documents, queries @ documents.T) > 0.6


def test_rescored_documents_are_in_the_order_of_int8():
    """The bits find ten for each one wanted: here all there are."""
    documents, queries = clustered(61)[:43], clustered(61)[43:]
    both = build_index(documents, precision="binary_int8")
    # int8 of the same turned numbers.
    transform = faiss.downcast_VectorTransform(both.chain.at(0))
    turned, asked = transform.apply(documents), transform.apply(queries)
    int8 = search_index(build_index(turned, precision="int8"), asked, 5)
    found = search_index(both, queries, 5)
    np.testing.assert_array_equal(found.documents, int8.documents)
    np.testing.assert_allclose(found.scores, int8.scores, atol=1e-6)
    # As many as there are, though the bits are asked for more.
    everything = search_index(both, queries, 43).documents
    assert (np.sort(everything, axis=1) == np.arange(43)).all()


SHAPES = [
    (precision, reduction, approximate)
    for precision in PRECISIONS
    for reduction in (None, "pca")
    for approximate in (False, True)
]


@pytest.mark.parametrize("precision, reduction, approximate", SHAPES)
def test_files_parts_and_bytes(precision, reduction, approximate, tmp_path):
    documents, queries = np.split(clustered(211), [199])
    options = {"precision": precision, "approximate": approximate}
    if reduction:
        options |= {"dimension": 13, "reduction": reduction}
    index = new_index(documents, **options)
    assert index.is_trained and not index.ntotal
    empty = faiss.serialize_index(index).size
    index.add(documents[:101])
    index.add(documents[101:])
    found = search_index(index, queries, 17)
    assert (np.diff(found.scores, axis=1) <= 0).all()
    # Whole queries, of the file alone.
    path = tmp_path / "index.faiss"
    faiss.write_index(index, str(path))
    read = search_index(faiss.read_index(str(path)), queries, 17)
    np.testing.assert_array_equal(read.documents, found.documents)
    np.testing.assert_array_equal(read.scores, found.scores)
    # More than documents ask for.
    assert search_index(index, queries, 997).documents.shape == (12, 199)

    size = bytes_per_document(index)
    # How many documents each of the 199 // 39 parts has is in the file, too.
    bits = precision.startswith("binary")
    parts = 8 * 5 if bits and approximate else 0
    growth = path.stat().st_size - empty - parts
    assert size * 199 == pytest.approx(growth, abs=0.5)
    kept = 13 if reduction else 29
    codes = {"float32": 4 * kept, "int8": kept, "binary": -(-kept // 8) + 8}
    codes["binary_int8"] = codes["binary"] + codes["int8"]
    links = size - codes[precision]
    if not approximate:
        assert links == 0
    elif bits:
        assert links == 8
    else:
        assert 130 < links < 160


@pytest.mark.parametrize("precision", PRECISIONS)
def test_approximate_search_finds_nearly_what_exact_finds(precision):
    documents, queries = np.split(clustered(1013), [997])
    shares = []
    for approximate in (False, True):
        index = build_index(
            documents, precision=precision, approximate=approximate
        )
        found = search_index(index, queries, 10).documents
        shares.append(shares_found(found, queries @ documents.T, 10))
    assert shares[1] > 0.95 * shares[0]


@pytest.mark.parametrize(
    "rows, options, message",
    [
        (0, {}, r"must have rows.*\(0, 7\)"),
        (3, {"precision": "int4"}, "`precision`.*float32, int8.*'int4'"),
        (3, {"reduction": "svd"}, "`reduction`.*truncate, pca.*'svd'"),
        (3, {"dimension": 8}, "`dimension`.*from 1 to 7.*8"),
        (3, {"dimension": 5, "reduction": "pca"}, "Received: 3 rows"),
    ],
)
def test_index_refuses(rows, options, message):
    with pytest.raises(ValueError, match=message):
        new_index(random(rows, 7), **options)


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


def test_fusion_refuses():
    with pytest.raises(ValueError, match=r"\[\(1, 2\), \(2, 2\)\]"):
        reciprocal_rank_fusion(
            [ranking([[1, 2]]), ranking([[1, 2], [3, 4]])], 1
        )
    with pytest.raises(ValueError, match="one or more"):
        reciprocal_rank_fusion([], 1)


def test_k_must_be_positive():
    for rank in (
        lambda: search_index(build_index(random(3, 7)), random(2, 7), 0),
        lambda: reciprocal_rank_fusion([ranking([[1, 2]])], 0),
        lambda: BM25(TEXTS).search(["cat"], 0),
    ):
        with pytest.raises(ValueError, match="`k` must be a positive.*0"):
            rank()


@pytest.mark.parametrize("module", ["faiss", "Stemmer"])
def test_names_the_extra_that_is_missing(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"fixedhead\[retrieval\]"):
        if module == "faiss":
            build_index(random(3, 7))
        else:
            BM25(TEXTS).search(["cat"], 1)


def test_bm25_is_lucenes():
    k1, b = 1.5, 0.75
    found = BM25(TEXTS).search(["walking the cat", "fox", "zebra"], 5)
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
    made = BM25(iter(TEXTS))
    made.save(tmp_path / "bm25")
    found = BM25.load(tmp_path / "bm25").search(queries, 3)
    wanted = BM25(TEXTS).search(queries, 3)
    np.testing.assert_array_equal(found.documents, wanted.documents)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert not caplog.records


def test_bm25_needs_words():
    with pytest.raises(ValueError, match="2 documents with none"):
        BM25(["the", ""])


def test_components_are_those_of_the_singular_values():
    vectors = np.random.default_rng(3).normal(size=(23, 7)) + 0.5
    _, _, expected = np.linalg.svd(vectors)
    components = principal_components(vectors.astype("float32"), 5)
    assert components.shape == (7, 5)
    # Either sign is one; here the largest number of each is positive.
    np.testing.assert_allclose(
        np.abs(components), np.abs(expected[:5].T), atol=1e-5
    )
    np.testing.assert_allclose(components.T @ components, np.eye(5), atol=1e-9)
    largest = np.abs(components).argmax(axis=0)
    assert (components[largest, range(5)] > 0).all()


def test_components_beyond_the_dimensions_are_zero():
    vectors = np.random.default_rng(3).normal(size=(23, 3))
    components = principal_components(vectors, 5)
    assert not components[:, 3:].any()
    products = vectors @ components
    np.testing.assert_allclose(products @ products.T, vectors @ vectors.T)
