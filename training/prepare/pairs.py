"""Query-document pairs to train and to evaluate on."""

import collections
import glob
import hashlib
import pathlib
import re
import typing

import datasketch
from rich.console import Console
from scipy.cluster.hierarchy import DisjointSet

from keras_fixedhead.beir import Beir, write_beir
from training.corpus import vocabulary
from training.corpus.pairs import (
    Pair,
    as_beir,
    read_jsonl,
    read_judged,
    read_pairs,
    write_jsonl,
)
from training.engine.configs import check
from training.prepare.configs import PairsConfig
from training.prepare.docstrings import installed_folders, read_docstrings
from training.prepare.folder import Output

# Documents with this fraction of their distinct words in common are
# near-duplicates: copies of a function in two packages, or overloads.
_MIN_JACCARD = 0.75
# Bands and rows of the index: it proposes documents of this similarity with
# probability 1 - (1 - 0.75**5)**25 = 0.999.
_BANDS, _ROWS = 25, 5

_WORD = re.compile(r"\w+")


def prepare_pairs(config: PairsConfig) -> dict:
    """Writes a folder of pairs, and returns its manifest."""
    check("between 0 and 1", lambda x: 0 < x < 1, heldout=config.heldout)
    if config.heldout_source is None and config.heldout_split is not None:
        raise ValueError(
            "`heldout_split` must be None without `heldout_source`. "
            f"Received: {config.heldout_split!r}"
        )
    output = Output(config, _file_names(config))
    if (made_before := output.made_before()) is not None:
        return made_before

    if config.source == "python" and config.source_split is None:
        pairs, left_out = read_docstrings(installed_folders())
    else:
        pairs, left_out = read_pairs(config.source, config.source_split)
    counts = {"rows read": len(pairs) + sum(left_out.values())}
    if config.heldout_source is None:
        with Console(stderr=True).status("Joining near-duplicates"):
            split = split_pairs(pairs, config.heldout, config.seed)
        train, heldout = split.train, as_beir(split.heldout)
        counts["clusters"] = split.num_clusters
        left_out |= split.left_out
    else:
        heldout, more = _read_heldout(
            config.heldout_source, config.heldout_split
        )
        counts["rows read"] += len(heldout.judgements) + sum(more.values())
        queries = {
            words_of(heldout.queries[judgement.query])
            for judgement in heldout.judgements
        }
        train = [p for p in pairs if words_of(p.query) not in queries]
        more["pairs of held-out queries"] = len(pairs) - len(train)
        left_out |= {reason: count for reason, count in more.items() if count}
    relevant = sum(judgement.score > 0 for judgement in heldout.judgements)
    if not train or not relevant:
        raise ValueError(
            "`source` and `heldout_source` must give pairs to train on, and "
            f"of other queries pairs to hold out. Received: {len(train)} and "
            f"{relevant} of {len(pairs)} pairs"
        )
    if config.vocabulary is None:
        with Console(stderr=True).status("Learning the vocabulary"):
            tokens = vocabulary.learn_vocabulary(
                [text for p in train for text in (p.query, p.document)],
                config.vocabulary_size,
                config.lowercase,
            )
    else:
        tokens = vocabulary.read_vocabulary(config.vocabulary)
    counts |= {
        "training pairs": len(train),
        "held-out pairs": len(heldout.judgements),
        "held-out queries": len(heldout.queries),
        "held-out documents": len(heldout.documents),
    }
    with output.work_folder() as work:
        write_jsonl(work / "data" / "train.jsonl", train)
        write_beir(work / "data" / "heldout", heldout, split="test")
        vocabulary.write_vocabulary(work / "data" / "vocabulary.txt", tokens)
        return output.finish(work, {"counts": counts, "left_out": left_out})


def _file_names(config: PairsConfig) -> list[str]:
    given = (config.source, config.heldout_source, config.vocabulary)
    names = [str(name) for name in given if name not in ("python", None)]
    # `stamps` looks for texts in a folder, and so misses its judgements.
    folders = [name for name in names if pathlib.Path(name, "qrels").is_dir()]
    return names + [f"{glob.escape(name)}/qrels/*.tsv" for name in folders]


def _read_heldout(source: str, split: str | None) -> tuple[Beir, dict]:
    """Reads what to hold out, and counts what is left out of it."""
    judged = read_judged(source, split)
    if judged is not None:
        heldout, left_out = judged
        return heldout, {f"held-out {what}": n for what, n in left_out.items()}
    pairs = read_jsonl(source)
    heldout = as_beir(pairs)
    repeats = len(pairs) - len(heldout.judgements)
    return heldout, {"repeats of a held-out pair": repeats}


class Split(typing.NamedTuple):
    """Pairs to train on and pairs held out, from different clusters."""

    train: list[Pair]
    heldout: list[Pair]
    num_clusters: int
    left_out: dict[str, int]


def split_pairs(pairs: list[Pair], heldout: float, seed: int) -> Split:
    """Holds out a fraction of the clusters, one pair of each.

    The seed and the first identifier of a cluster decide, so other pairs can
    come and go. Training leaves out copies and held-out negatives.
    """
    clusters = cluster_pairs(pairs)
    train: set[Pair] = set()
    held_out: set[Pair] = set()
    unseen: set[tuple[str, ...]] = set()
    left_out: collections.Counter[str] = collections.Counter()
    for cluster in clusters:
        if _is_held_out(min(pair.id for pair in cluster), heldout, seed):
            held_out.add(cluster[0])
            left_out["near-duplicates of a held-out pair"] += len(cluster) - 1
            unseen.update(words_of(pair.document) for pair in cluster)
        else:
            # Backwards, so that the first of equal pairs stays.
            by_words = {
                (words_of(pair.query), words_of(pair.document)): pair
                for pair in cluster[::-1]
            }
            train.update(by_words.values())
            copies = len(cluster) - len(by_words)
            left_out["repeats of a training pair"] += copies

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
    """Joins pairs with near-duplicate documents or equal queries, in order.

    MinHash sketches of words (Broder 1997) in a locality-sensitive index
    propose candidates; the exact Jaccard index decides.
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
