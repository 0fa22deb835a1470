"""Batches of pairs: order, division over replicas, augmentation."""

import collections

import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from tests.training import tiny
from tests.training.batch_tests import BATCH, BatchesTests, take
from training.corpus.pairs import Pair
from training.retrieval.batches import PairBatches, Pairs
from training.retrieval.configs import RetrievalConfig

PAIRS = Pairs.of([Pair(**pair) for pair in tiny.pairs(29)])
PROMPTS = {"query": "one two ", "document": ""}


def batches(prompts=None, packed=True, **changes):
    config = {"query_length": 7, "document_length": 13, **changes}
    preprocessor = FixedHeadTextEmbedderPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY),
        sequence_length=17,
        prompts=prompts,
    )
    return PairBatches(
        BATCH, preprocessor, 3, packed, config=RetrievalConfig(**config)
    )


def negatives(pairs):
    """The documents that do not answer each query."""
    return [
        tuple(pairs.texts[key] for key in keys) for keys in pairs.negative_keys
    ]


def texts(features):
    """The words of each row, special tokens and padding left out."""
    return [
        " ".join(tiny.VOCABULARY[i] for i in row if i > 4)
        for row in features["token_ids"]
    ]


def test_split_sets_documents_aside():
    pairs = Pairs.of(
        [Pair(str(i), f"query {i}", f"document {i // 3}") for i in range(29)]
    )
    whole = set(zip(pairs.queries, pairs.documents))
    for count in (1, 13, 26):
        training, validation = pairs.split(count, seed=1)
        assert len(validation) == count
        # What is too much of the last document is in neither.
        assert 0 <= 29 - len(training) - count <= 2
        assert not set(training.documents) & set(validation.documents)
        assert whole > set(zip(training.queries, training.documents))
        assert whole > set(zip(validation.queries, validation.documents))
    again, other = pairs.split(count, seed=1), pairs.split(count, seed=2)
    np.testing.assert_array_equal(again[1].keys, validation.keys)
    assert other[1].queries != validation.queries
    for count in (0, 29):
        with pytest.raises(ValueError, match=f"Received: {count}"):
            pairs.split(count, seed=1)


def test_documents_set_aside_are_no_negatives():
    names = [f"document {i}" for i in range(13)]
    pairs = Pairs.of(
        [
            Pair(str(i), f"query {i}", name, (*names[:i], f"other {i}"))
            for i, name in enumerate(names)
        ]
    )
    training, validation = pairs.split(5, seed=1)
    assert negatives(training) == [
        (
            *(name for name in names[:i] if name not in validation.documents),
            f"other {i}",
        )
        for i in (int(query.split()[1]) for query in training.queries)
    ]


@pytest.fixture(scope="module")
def made():
    """All that is random at work."""
    changes = {"crop_document": 0.5, "inverse_cloze": 0.5, "hard_negatives": 3}
    return batches(packed=False, **changes)


@pytest.fixture(scope="module")
def examples():
    return PAIRS


class TestBatches(BatchesTests):
    def test_an_epoch_has_no_pair_twice_and_each_its_own_order(self, whole):
        keys = [batch["keys"][:, 0].tolist() for batch in whole]
        epochs = [sum(keys[:4], []), sum(keys[4:], [])]
        pairs = collections.Counter(PAIRS.keys[:, 0].tolist())
        for epoch in epochs:
            assert len(epoch) == 24 and collections.Counter(epoch) <= pairs
        assert epochs[0] != epochs[1]


# Number i has i % 4 documents that do not answer it.
WITH_NEGATIVES = Pairs.of(
    [
        Pair(
            str(i),
            f"{word} dog",
            f"{word} runs",
            tuple(f"{word} {tiny.WORDS[j]} eats" for j in range(i % 4)),
        )
        for i, word in enumerate(tiny.WORDS)
    ]
)
OWN = negatives(WITH_NEGATIVES)


def test_negatives_are_the_pairs_own():
    changes = {"hard_negatives": 2, "query_length": 5}
    made = batches(prompts=PROMPTS, packed=False, **changes)
    drawn = collections.defaultdict(set)
    for batch in take(made, WITH_NEGATIVES, 40):
        assert all(t.startswith("one two ") for t in texts(batch["query"]))
        assert batch["query"]["token_ids"].shape == (6, 5)  # cut
        assert batch["negative"]["token_ids"].shape == (12, 13)
        found = np.reshape(texts(batch["negative"]), (6, 2))
        numbers = batch["negative_keys"].reshape(6, 2)
        for i, both, two in zip(batch["keys"][:, 0], found, numbers):
            own = dict(zip(OWN[i], WITH_NEGATIVES.negative_keys[i]))
            assert list(two) == [own.get(text, -1) for text in both]
            real = {text for text in both if text}
            assert len(real) == (two >= 0).sum() == min(i % 4, 2)
            drawn[i].update(real)
    assert len(drawn) == 20
    assert all(drawn[i] == set(OWN[i]) for i in drawn)


def test_equal_texts_have_equal_numbers():
    pairs = Pairs.of(
        [
            Pair("a", "red", "cat", ("dog", "bird", "dog", "fish")),
            Pair("b", "red", "bird"),
            Pair("c", "blue", "fish", ("cat",)),
        ]
    )
    # What answers a query is no negative of it.
    assert negatives(pairs) == [("dog", "fish"), (), ("cat",)]
    assert pairs.keys.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert pairs.negative_keys == [(3, 2), (), (0,)]


def sentences(key):
    index = PAIRS.keys[:, 1].tolist().index(key)
    document = PAIRS.documents[index].replace(".", " .")
    return [part + "." for part in document.split(".")[:-1]]


def test_crop_keeps_consecutive_sentences():
    made = batches(crop_document=1.0, document_length=17)
    spans = collections.Counter()
    for batch in take(made, PAIRS, 20):
        for text, key in zip(texts(batch["document"]), batch["keys"][:, 1]):
            parts = [part.strip() for part in sentences(key)]
            found = [
                (i, j)
                for i in range(3)
                for j in range(i + 1, 4)
                if " ".join(parts[i:j]) == text
            ]
            assert found, (text, parts)
            spans[found[0]] += 1
    assert set(spans) == {(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)}
    # A third of each length.
    assert 20 <= spans[0, 3] <= 60


def test_inverse_cloze_moves_a_sentence_into_the_query():
    made = batches(inverse_cloze=0.5, query_length=17, document_length=17)
    moved = 0
    for batch in take(made, PAIRS, 20):
        rows = zip(texts(batch["query"]), texts(batch["document"]))
        for (query, document), (query_key, key) in zip(rows, batch["keys"]):
            parts = [part.strip() for part in sentences(key)]
            if query in parts:
                parts.remove(query)
                moved += 1
            else:
                index = PAIRS.keys[:, 0].tolist().index(query_key)
                assert query == PAIRS.queries[index]
            assert document == " ".join(parts)
    assert 35 <= moved <= 85


def test_documents_of_one_sentence_are_left_alone():
    one = Pairs.of([Pair(str(i), "red", "cat runs") for i in range(6)])
    made = batches(inverse_cloze=1.0, crop_document=1.0)
    (batch,) = take(made, one, 1)
    assert texts(batch["query"]) == ["red"] * 6
    assert texts(batch["document"]) == ["cat runs"] * 6


def test_refuses_probabilities_over_1_and_too_few_pairs():
    with pytest.raises(ValueError, match="`crop_document` .* Received: 1.5"):
        batches(crop_document=1.5)
    with pytest.raises(ValueError, match="`global_batch_size` .* 5. Received"):
        take(batches(), PAIRS.split(5, seed=1)[1], 1)
