"""The split: what is joined, and that no cluster is on both sides."""

import random

import pytest

from training.corpus.pairs import Pair
from training.prepare.pairs import cluster_pairs, split_pairs

LONG = "the quick brown fox jumps over a lazy dog while seven cats sleep"


def ids(clusters):
    return [[pair.id for pair in cluster] for cluster in clusters]


def corpus(num_families, seed=0):
    """Families of three documents that differ by a word out of forty."""
    words = [f"w{i}" for i in range(5_000)]
    rng = random.Random(seed)
    pairs = []
    for family in range(num_families):
        text = rng.sample(words, 40)
        for copy in range(3):
            pairs.append(
                Pair(
                    f"{copy}.{family}",
                    " ".join(rng.sample(words, 6)),
                    " ".join([*text[1:], f"own{copy}"]),
                )
            )
    return pairs


def test_joins_near_duplicates_and_equal_queries():
    pairs = [
        Pair("a", "first query", LONG),
        Pair("b", "second query", f"{LONG.upper()}!"),
        Pair("c", "third query", LONG.replace("fox", "wolf")),
        Pair("d", "fourth query", "something else about trees and rivers"),
        Pair("e", "Third -- Query.", "an unrelated document on its own"),
        # 11 of 15 words in common are not enough.
        Pair("f", "sixth query", LONG.replace("cats sleep", "birds sing")),
    ]
    assert ids(cluster_pairs(pairs)) == [["a", "b", "c", "e"], ["d"], ["f"]]


def test_held_out_documents_are_no_negatives_of_training():
    apart = [" ".join(f"{a}{i}" for i in range(7)) for a in "abcdefghijk"]
    pairs = [
        Pair(f"p{i}", f"query {i}", text, tuple(apart[:i] + ["other words"]))
        for i, text in enumerate(apart)
    ]
    split = split_pairs(pairs, 0.5, seed=0)
    assert len(split.train) > 1 and len(split.heldout) > 1
    held_out = {pair.document for pair in split.heldout}
    for pair in split.train:
        i = int(pair.id[1:])
        assert pair.negatives == tuple(
            text for text in [*apart[:i], "other words"] if text not in held_out
        )


def test_joins_through_chains():
    words = LONG.split()
    chain = [
        Pair(str(i), f"query {i}", " ".join(words[:-i] + [f"x{i}"] * i))
        for i in range(1, 3)
    ]
    pairs = [chain[1], Pair("0", "query 0", LONG), chain[0]]
    assert ids(cluster_pairs(pairs)) == [["2", "0", "1"]]


def test_documents_without_words_are_one_cluster():
    pairs = [Pair("a", "one", "!!"), Pair("b", "two", "??")]
    assert ids(cluster_pairs(pairs)) == [["a", "b"]]


def test_finds_families_among_many():
    clusters = cluster_pairs(corpus(211))
    assert len(clusters) == 211
    assert {len(cluster) for cluster in clusters} == {3}


def test_split_keeps_clusters_whole_and_heldout_queries_unique():
    pairs = corpus(211)
    split = split_pairs(pairs, heldout=0.3, seed=5)
    families = [
        {pair.id.split(".")[1] for pair in part}
        for part in (split.train, split.heldout)
    ]
    assert not families[0] & families[1]
    assert split.num_clusters == len(families[0] | families[1]) == 211
    assert len(split.heldout) == len(families[1])
    assert len(split.train) == 3 * len(families[0])
    # Binomial: five standard deviations.
    assert abs(len(split.heldout) - 63.3) < 33
    positions = [pairs.index(pair) for pair in split.train]
    assert positions == sorted(positions)


def test_split_depends_on_seed_and_cluster_alone():
    pairs = corpus(101)
    split = split_pairs(pairs, heldout=0.3, seed=5)
    shuffled = random.Random(1).sample(pairs, len(pairs))

    def families(split):
        return {pair.id.split(".")[1] for pair in split.heldout}

    assert families(split_pairs(shuffled, 0.3, 5)) == families(split)
    some = [pair for pair in pairs if int(pair.id.split(".")[1]) < 50]
    assert families(split_pairs(some, 0.3, 5)) == {
        family for family in families(split) if int(family) < 50
    }
    assert families(split_pairs(pairs, 0.3, 6)) != families(split)
    # A larger part holds out what a smaller one does, and more.
    assert families(split_pairs(pairs, 0.5, 5)) > families(split)


@pytest.mark.parametrize("seed", range(3))
def test_training_pairs_repeat_no_query_with_its_document(seed):
    pairs = corpus(31)
    copies = [
        Pair(f"copy.{pair.id}", pair.query.title(), pair.document.upper())
        for pair in pairs
    ]
    split = split_pairs(pairs + copies, heldout=0.2, seed=seed)
    assert split.train
    assert not {pair.id for pair in split.train} & {p.id for p in copies}
