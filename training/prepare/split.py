"""Near-duplicate clusters, and which of them are held out."""

import collections
import hashlib
import re
import typing

import datasketch
from scipy.cluster.hierarchy import DisjointSet

from training.corpus.pairs import Pair

# Documents with this fraction of their distinct words in common are
# near-duplicates: copies of a function in two packages, or overloads.
_MIN_JACCARD = 0.75
# Bands and rows of the index: it proposes documents of this similarity with
# probability 1 - (1 - 0.75**5)**25 = 0.999.
_BANDS, _ROWS = 25, 5

_WORD = re.compile(r"\w+")

# Why a pair is left out.
_REPEATS = "repeats of a training pair"
_HELD_OUT_COPIES = "near-duplicates of a held-out pair"


class Split(typing.NamedTuple):
    """Pairs to train on and pairs held out, from different clusters."""

    train: list[Pair]
    heldout: list[Pair]
    num_clusters: int
    left_out: dict[str, int]


def split_pairs(pairs: list[Pair], heldout: float, seed: int) -> Split:
    """Holds out a fraction of the clusters of near-duplicates.

    The seed and the first identifier of a cluster, in alphabetical order,
    decide whether it is held out, so other pairs can come and go. Identifiers
    must be unique.

    One pair of each held-out cluster is held out, so that its query has one
    right document. Training pairs leave out copies, word for word, of another
    pair, and negatives that are documents of held-out clusters. Both keep the
    order of `pairs`.
    """
    clusters = cluster_pairs(pairs)
    train, held_out, unseen = set(), set(), set()
    left_out: collections.Counter[str] = collections.Counter()
    for cluster in clusters:
        if _is_held_out(min(pair.id for pair in cluster), heldout, seed):
            held_out.add(cluster[0])
            left_out[_HELD_OUT_COPIES] += len(cluster) - 1
            unseen.update(words_of(pair.document) for pair in cluster)
        else:
            # Backwards, so that the first of equal pairs stays.
            by_words = {
                (words_of(pair.query), words_of(pair.document)): pair
                for pair in cluster[::-1]
            }
            train.update(by_words.values())
            left_out[_REPEATS] += len(cluster) - len(by_words)

    def seen(negatives):
        return tuple(n for n in negatives if words_of(n) not in unseen)

    return Split(
        [
            pair._replace(negatives=seen(pair.negatives))
            for pair in pairs
            if pair in train
        ],
        [pair for pair in pairs if pair in held_out],
        len(clusters),
        {reason: count for reason, count in left_out.items() if count},
    )


def cluster_pairs(pairs: list[Pair]) -> list[list[Pair]]:
    """Joins pairs with near-duplicate documents or equal queries.

    Texts are compared as words, without case and punctuation. MinHash sketches
    of a document's distinct words in a locality-sensitive index (Broder 1997;
    Indyk and Motwani 1998) propose candidates; the exact Jaccard index
    decides. Clusters, and the pairs in each, keep the order of `pairs`.
    """
    words = [frozenset(words_of(pair.document)) for pair in pairs]
    permutations = _BANDS * _ROWS
    index = datasketch.MinHashLSH(num_perm=permutations, params=(_BANDS, _ROWS))
    sketches = datasketch.MinHash.generator(
        ([word.encode() for word in distinct] for distinct in words),
        num_perm=permutations,
    )
    clusters = DisjointSet(range(len(pairs)))
    queries: dict[tuple[str, ...], int] = {}
    for number, (pair, sketch) in enumerate(zip(pairs, sketches)):
        clusters.merge(number, queries.setdefault(words_of(pair.query), number))
        for other in index.query(sketch):
            if clusters.connected(number, other):
                continue
            shared = len(words[number] & words[other])
            if shared >= _MIN_JACCARD * len(words[number] | words[other]):
                clusters.merge(number, other)
        index.insert(number, sketch)
    members = sorted(sorted(subset) for subset in clusters.subsets())
    return [[pairs[number] for number in subset] for subset in members]


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words of a text, without case and punctuation."""
    return tuple(_WORD.findall(text.lower()))


def _is_held_out(cluster: str, heldout: float, seed: int) -> bool:
    digest = hashlib.sha256(f"{seed}\n{cluster}".encode()).digest()
    return int.from_bytes(digest[:8]) < heldout * 2**64
