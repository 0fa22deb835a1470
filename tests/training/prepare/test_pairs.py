"""The verb `training.prepare pairs`, and how it splits pairs."""

import hashlib
import json
import random

import pytest

from keras_fixedhead.beir import read_collection, write_beir
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.training import tiny
from tests.training.prepare import command
from tests.training.prepare.command import content
from training.corpus.pairs import (
    Pair,
    as_beir,
    read_jsonl,
    read_pairs,
    write_jsonl,
)
from training.prepare.pairs import cluster_pairs, split_pairs

PAIRS = [
    Pair(f"p{i}", f"query number {i}", f"document w{i} w{i} w{i} x{i}")
    for i in range(97)
]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.jsonl"
    write_jsonl(path, PAIRS)
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def flags(tmp_path, source, output):
    vocabulary = tmp_path / "given.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, "query"]) + "\n")
    return {"source": source, "vocabulary": vocabulary, "output": output}


def write_all(beir, *more):
    """Writes a BEIR folder of all pairs, as the split `train`."""
    write_beir(beir, as_beir([*PAIRS, *more]), "train")
    return beir


def prepare(*words, **flags):
    return command.prepare("pairs", *words, **flags)


def adds_up(output):
    """The rows, and what is left out of them, if that accounts for all."""
    manifest = json.loads((output / "manifest.json").read_text())
    counts, left_out = manifest["counts"], manifest["left_out"]
    assert counts["training pairs"] == len(read_jsonl(output / "train.jsonl"))
    heldout, _ = read_pairs(output / "heldout")
    assert counts["held-out pairs"] == len(heldout)
    assert counts["rows read"] == sum(
        [counts["training pairs"], counts["held-out pairs"], *left_out.values()]
    )
    return counts["rows read"], left_out


def test_writes_the_whole_folder(tmp_path, source, capsys):
    output = tmp_path / "new" / "data"
    assert prepare(output=output, source=source, heldout=0.3, seed=3) == 0
    assert set(content(output)) == {
        "train.jsonl",
        "heldout/corpus.jsonl",
        "heldout/queries.jsonl",
        "heldout/qrels/test.tsv",
        "vocabulary.txt",
        "manifest.json",
        "sources.json",
    }
    assert list(output.parent.iterdir()) == [output]
    train = read_jsonl(output / "train.jsonl")
    heldout, _ = read_pairs(output / "heldout")
    documents = [pair.document for pair in train + heldout]
    assert sorted(documents) == sorted(pair.document for pair in PAIRS)
    manifest = json.loads((output / "manifest.json").read_text())
    vocabulary = (output / "vocabulary.txt").read_bytes()
    tokens = vocabulary.decode().splitlines()
    assert manifest["counts"] == {
        "rows read": 97,
        "clusters": 97,
        "training pairs": len(train),
        "held-out pairs": len(heldout),
        "held-out queries": len(heldout),
        "held-out documents": len(heldout),
        "tokens in the vocabulary": len(tokens),
    }
    # Learned from the training pairs alone.
    words = {f"w{i}" for i in range(97)}
    assert words & set(tokens) == {p.document.split()[1] for p in train}
    digest = hashlib.sha256(vocabulary).hexdigest()
    assert manifest["vocabulary_sha256"] == digest
    assert manifest["arguments"] == {
        "source": str(source),
        "source_split": None,
        "heldout_source": None,
        "heldout_split": None,
        "heldout": 0.3,
        "seed": 3,
        "vocabulary": None,
        "vocabulary_size": 16_000,
        "lowercase": True,
    }
    assert "held-out queries" in capsys.readouterr().out


def test_repeats_say_so_and_other_arguments_need_overwrite(
    tmp_path, source, output, flags, capsys
):
    assert prepare(seed=1, **flags) == 0
    vocabulary = flags["vocabulary"]
    assert (output / "vocabulary.txt").read_text() == vocabulary.read_text()
    first = content(output)
    # What an older version wrote is not made again.
    (output / "sources.json").unlink()
    assert prepare(seed=1, **flags) == 0
    assert "made before" in capsys.readouterr().out
    (output / "sources.json").write_bytes(first["sources.json"])
    assert prepare(seed=2, **flags) == 1
    assert "--overwrite" in tiny.error(capsys)
    # What fails leaves the folder as it was, and nothing beside it.
    moved = source.rename(source.with_name("moved.jsonl"))
    assert prepare("--overwrite", seed=2, **flags) == 1
    assert content(output) == first
    moved.rename(source)
    assert prepare("--overwrite", seed=2, **flags) == 0
    assert content(output)["train.jsonl"] != first["train.jsonl"]
    assert prepare("--overwrite", seed=1, **flags) == 0
    assert content(output) == first
    assert set(tmp_path.iterdir()) == {source, vocabulary, output}


def test_holds_another_source_out_as_it_is(tmp_path, output, flags):
    other = tmp_path / "dev.json"
    texts = ["Query: NUMBER 5?", "a new one", "unanswered"]
    questions = [
        {"id": f"q{i}", "question": text, "is_impossible": i == 2}
        for i, text in enumerate(texts)
    ]
    paragraphs = [
        {"context": PAIRS[7].document, "qas": questions},
        {"context": "without a question", "qas": []},
    ]
    other.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    assert prepare(heldout_source=other, **flags) == 0
    # A query that is asked there is not trained on, its document may be.
    assert read_jsonl(output / "train.jsonl") == [*PAIRS[:5], *PAIRS[6:]]
    heldout = read_collection(output / "heldout")
    assert heldout.documents == [PAIRS[7].document, "without a question"]
    assert heldout.relevant == [{0: 1}, {0: 1}]
    assert adds_up(output) == (
        100,
        {
            "held-out questions without an answer": 1,
            "pairs of held-out queries": 1,
        },
    )


def test_every_row_is_accounted_for(tmp_path, output, flags, capsys):
    """Whichever of a pair and its copies is held out."""
    copies = [
        p._replace(id=f"{p.id}-{n}", query=query(p.query))
        for p in PAIRS
        for n, query in enumerate((str.upper, "other {}".format))
    ]
    path = tmp_path / "copies.jsonl"
    write_jsonl(path, [*PAIRS, *copies])
    assert prepare(**flags | {"source": path, "heldout": 0.3}) == 0
    held_out, _ = read_pairs(output / "heldout")
    assert 0 < len(held_out) < 97
    # The query in capitals is a repeat; the other one is another pair.
    repeats = 97 - len(held_out)
    assert adds_up(output) == (
        3 * 97,
        {
            "repeats of a training pair": repeats,
            "near-duplicates of a held-out pair": 2 * len(held_out),
        },
    )
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "rows read 291" in shown
    assert f"left out: repeats of a training pair {repeats}" in shown


def test_every_judgement_is_accounted_for(tmp_path, output, flags):
    blank = [Pair("b", "  ", "w1 w2"), Pair("c", "asked w3", " ")]
    beir = write_all(tmp_path / "beir", *blank)
    lines = ["p0\tp0\t3", "p1\tp0\t0", "b\tp0\t0", "p1\tp2\t-1"]
    (beir / "qrels" / "more.tsv").write_text("\n".join(lines))
    with open(beir / "queries.jsonl", "a") as lines:
        lines.write('{"_id": "u", "text": "new"}\n')
    (beir / "qrels" / "other.tsv").write_text("u\tp5\t0\n")
    assert prepare(**flags | {"source": beir, "heldout": 0.3}) == 0
    assert adds_up(output) == (
        97 + 2 + 4 + 1,
        {
            "judgements of blank texts": 3,
            "judgements made before": 1,
            "irrelevant documents, negatives of pairs": 2,
            "irrelevant to queries without an answer": 1,
        },
    )


def test_a_source_held_out_is_accounted_for(tmp_path, output, flags):
    other = tmp_path / "other.jsonl"
    repeated = PAIRS[7]._replace(id="again")
    write_jsonl(other, [PAIRS[7], repeated, Pair("n", "a new one", "w1")])
    assert prepare(heldout_source=other, **flags) == 0
    assert adds_up(output) == (
        97 + 3,
        {"pairs of held-out queries": 1, "repeats of a held-out pair": 1},
    )


def test_holds_out_a_split_of_a_beir_folder(tmp_path, output, flags, capsys):
    beir = write_all(tmp_path / "beir")
    rows = [f"p{i}\tp{i}\t2\n" for i in range(3)] + ["p0\tp9\t0\n"]
    (beir / "qrels" / "dev.tsv").write_text("".join(rows))
    splits = {"source_split": "train", "heldout_split": "dev"}
    flags |= {"source": beir, "heldout_source": beir, **splits}
    assert prepare(**flags) == 0
    train = read_jsonl(output / "train.jsonl")
    assert [pair.query for pair in train] == [p.query for p in PAIRS[3:]]
    heldout = read_collection(output / "heldout")
    assert heldout.relevant == [{0: 2}, {1: 2}, {2: 2}]
    assert len(heldout.documents) == 97
    # Other judgements are another source.
    (beir / "qrels" / "dev.tsv").write_text("p1\tp2\t0\n")
    assert prepare(**flags) == 1
    assert "made with other files" in capsys.readouterr().err
    assert prepare("--overwrite", **flags) == 1
    assert "Received: 96 and 0 of 97 pairs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"source": "python", "source_split": "dev"}, "Only a BEIR folder"),
        ({"heldout_split": "dev"}, "`heldout_split` must be None without"),
        ({"heldout": 1}, "`heldout` must be between 0 and 1. Received: 1.0"),
        ({"heldout": 1e-9}, "pairs to hold out. Received: 97 and 0 of 97"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path, flags, capsys, monkeypatch, changes, message
):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert prepare(**flags | changes) == 1
    assert message in tiny.error(capsys)
    assert set(tmp_path.iterdir()) == before


def test_leaves_other_folders_alone(tmp_path, source, capsys):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("file", "manifest.json"):
        (precious / name).write_text('{"name": "mine"}')
        before = content(precious)
        assert prepare("--overwrite", source=source, output=precious) == 1
        assert "must be a new folder, or one that" in capsys.readouterr().err
        assert content(precious) == before


LONG = "the quick brown fox jumps over a lazy dog while seven cats sleep"


def corpus(num_families):
    """Families of three documents that differ by a word out of forty."""
    words = [f"w{i}" for i in range(5_000)]
    rng = random.Random(0)
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


def families(pairs):
    return {pair.id.split(".")[1] for pair in pairs}


def test_joins_near_duplicates_and_equal_queries():
    # Each differs from the next in a word, the first and last in too many.
    words = LONG.split()
    chain = [" ".join(words[:-i] + [f"x{i}"] * i) for i in (2, 1)]
    pairs = [
        Pair("a", "first query", LONG),
        Pair("b", "second query", f"{LONG.upper()}!"),
        Pair("c", "third query", LONG.replace("fox", "wolf")),
        Pair("d", "fourth query", "something else about trees and rivers"),
        Pair("e", "Third -- Query.", "an unrelated document on its own"),
        # 11 of 15 words in common are not enough.
        Pair("f", "sixth query", LONG.replace("cats sleep", "birds sing")),
        Pair("g", "seventh query", "!!"),
        Pair("h", "eighth query", "??"),
    ]
    assert [[pair.id for pair in one] for one in cluster_pairs(pairs)] == [
        ["a", "b", "c", "e"], ["d"], ["f"], ["g", "h"],
    ]  # fmt: skip
    texts = [chain[0], LONG, chain[1]]
    pairs = [Pair(str(i), f"query {i}", text) for i, text in enumerate(texts)]
    assert cluster_pairs(pairs) == [pairs]


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


def test_split_keeps_clusters_whole_and_heldout_queries_unique():
    pairs = corpus(211)
    split = split_pairs(pairs, heldout=0.3, seed=5)
    train, heldout = families(split.train), families(split.heldout)
    assert not train & heldout
    assert split.num_clusters == len(train | heldout) == 211
    assert len(split.heldout) == len(heldout)
    assert len(split.train) == 3 * len(train)
    # Binomial: five standard deviations.
    assert abs(len(split.heldout) - 63.3) < 33
    positions = [pairs.index(pair) for pair in split.train]
    assert positions == sorted(positions)


def test_split_depends_on_seed_and_cluster_alone():
    pairs = corpus(101)

    def held_out(pairs, heldout, seed):
        return families(split_pairs(pairs, heldout, seed).heldout)

    expected = held_out(pairs, 0.3, 5)
    shuffled = random.Random(1).sample(pairs, len(pairs))
    assert held_out(shuffled, 0.3, 5) == expected
    some = [pair for pair in pairs if int(pair.id.split(".")[1]) < 50]
    assert held_out(some, 0.3, 5) == {f for f in expected if int(f) < 50}
    assert held_out(pairs, 0.3, 6) != expected
    # A larger part holds out what a smaller one does, and more.
    assert held_out(pairs, 0.5, 5) > expected
