"""The verb `training.prepare pairs`: a whole data folder, or none."""

import hashlib
import json
import pathlib

import pytest

from keras_fixedhead.beir import read_collection, write_beir
from tests.training.prepare.verb import content, flags_of
from training.corpus.pairs import (
    Pair,
    as_beir,
    read_jsonl,
    read_pairs,
    write_jsonl,
)
from training.prepare.__main__ import main

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
def vocabulary(tmp_path):
    path = tmp_path / "given.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nquery\n")
    return path


def prepare(*args, **flags):
    return main(flags_of("pairs", *args, **flags))


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
    assert set(train) <= set(PAIRS)
    assert {pair.document for pair in train + heldout} == {
        pair.document for pair in PAIRS
    }
    assert len(train) + len(heldout) == len(PAIRS)
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
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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
    tmp_path, source, vocabulary, capsys
):
    output = tmp_path / "data"
    flags = {"source": source, "vocabulary": vocabulary, "output": output}
    assert prepare(seed=1, **flags) == 0
    assert (output / "vocabulary.txt").read_text() == vocabulary.read_text()
    first = content(output)
    # The source is not even read again.
    moved = source.rename(source.with_name("moved.jsonl"))
    assert prepare(seed=1, **flags) == 0
    assert "made before" in capsys.readouterr().out
    # Nor is what an older version wrote made again.
    (output / "sources.json").unlink()
    assert prepare(seed=1, **flags) == 0
    assert "made before" in capsys.readouterr().out
    (output / "sources.json").write_bytes(first["sources.json"])
    assert prepare(seed=2, **flags) == 1
    error = capsys.readouterr().err
    assert "--overwrite" in error and len(error.splitlines()) == 1
    # What fails leaves the folder as it was, and nothing beside it.
    assert prepare("--overwrite", seed=2, **flags) == 1
    assert content(output) == first
    moved.rename(source)
    assert prepare("--overwrite", seed=2, **flags) == 0
    assert content(output)["train.jsonl"] != first["train.jsonl"]
    assert prepare("--overwrite", seed=1, **flags) == 0
    assert content(output) == first
    assert set(tmp_path.iterdir()) == {source, vocabulary, output}


def test_holds_another_source_out_as_it_is(tmp_path, source, vocabulary):
    other = tmp_path / "dev.json"
    questions = [
        {"id": f"q{i}", "question": text}
        for i, text in enumerate(["Query: NUMBER 5?", "a new one"])
    ]
    paragraphs = [
        {"context": PAIRS[7].document, "qas": questions},
        {"context": "without a question", "qas": []},
    ]
    other.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    output = tmp_path / "data"
    assert (
        prepare(
            source=source,
            heldout_source=other,
            vocabulary=vocabulary,
            output=output,
        )
        == 0
    )
    # A query that is asked there is not trained on, its document may be.
    assert read_jsonl(output / "train.jsonl") == [*PAIRS[:5], *PAIRS[6:]]
    heldout = read_collection(output / "heldout")
    assert heldout.documents == [PAIRS[7].document, "without a question"]
    assert heldout.relevant == [{0: 1}, {0: 1}]
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["left_out"] == {"pairs of held-out queries": 1}
    assert manifest["counts"]["held-out queries"] == 2


def adds_up(output):
    """What a folder leaves out, if its account of the rows adds up."""
    manifest = json.loads((output / "manifest.json").read_text())
    counts, left_out = manifest["counts"], manifest["left_out"]
    assert counts["training pairs"] == len(read_jsonl(output / "train.jsonl"))
    heldout, _ = read_pairs(output / "heldout")
    assert counts["held-out pairs"] == len(heldout)
    assert counts["rows read"] == sum(
        [counts["training pairs"], counts["held-out pairs"], *left_out.values()]
    )
    return counts["rows read"], left_out


def test_every_row_is_accounted_for(tmp_path, source, vocabulary, capsys):
    """Whichever of a pair and its copies is held out."""
    copies = [
        p._replace(id=f"{p.id}-{n}", query=query(p.query))
        for p in PAIRS
        for n, query in enumerate((str.upper, "other {}".format))
    ]
    path = tmp_path / "copies.jsonl"
    write_jsonl(path, [*PAIRS, *copies])
    output = tmp_path / "data"
    flags = {"vocabulary": vocabulary, "heldout": 0.3}
    assert prepare(source=path, output=output, **flags) == 0
    held_out, _ = read_pairs(output / "heldout")
    assert 0 < len(held_out) < 97
    rows, left_out = adds_up(output)
    assert rows == 3 * 97
    assert left_out == {
        # The query in capitals; the other one is another pair.
        "repeats of a training pair": 97 - len(held_out),
        "near-duplicates of a held-out pair": 2 * len(held_out),
    }
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "rows read 291" in shown
    repeats = left_out["repeats of a training pair"]
    assert f"left out: repeats of a training pair {repeats}" in shown


def test_every_judgement_is_accounted_for(tmp_path, vocabulary):
    beir = tmp_path / "beir"
    blank = [Pair("b", "  ", "w1 w2"), Pair("c", "asked w3", " ")]
    write_beir(beir, as_beir([*PAIRS, *blank]), "train")
    lines = ["p0\tp0\t3", "p1\tp0\t0", "b\tp0\t0", "p1\tp2\t-1"]
    (beir / "qrels" / "more.tsv").write_text("\n".join(lines))
    with open(beir / "queries.jsonl", "a") as lines:
        lines.write('{"_id": "u", "text": "new"}\n')
    (beir / "qrels" / "other.tsv").write_text("u\tp5\t0\n")
    output = tmp_path / "data"
    assert (
        prepare(source=beir, output=output, vocabulary=vocabulary, heldout=0.3)
        == 0
    )
    rows, left_out = adds_up(output)
    assert rows == 97 + 2 + 4 + 1
    assert left_out == {
        "judgements of blank texts": 3,
        "judgements made before": 1,
        "irrelevant documents, negatives of pairs": 2,
        "irrelevant to queries without an answer": 1,
    }


def test_a_source_held_out_is_accounted_for(tmp_path, source, vocabulary):
    other = tmp_path / "other.jsonl"
    repeated = PAIRS[7]._replace(id="again")
    write_jsonl(other, [PAIRS[7], repeated, Pair("n", "a new one", "w1")])
    output = tmp_path / "data"
    flags = {"source": source, "vocabulary": vocabulary, "output": output}
    assert prepare(heldout_source=other, **flags) == 0
    assert adds_up(output) == (
        97 + 3,
        {"pairs of held-out queries": 1, "repeats of a held-out pair": 1},
    )


def test_holds_out_a_split_of_a_beir_folder(tmp_path, vocabulary):
    beir = tmp_path / "beir"
    write_beir(beir, as_beir(PAIRS), "train")
    rows = [f"p{i}\tp{i}\t2\n" for i in range(3)] + ["p0\tp9\t0\n"]
    (beir / "qrels" / "dev.tsv").write_text("".join(rows))
    output = tmp_path / "data"
    flags = {"source": beir, "heldout_source": beir, "output": output}
    assert (
        prepare(
            source_split="train",
            heldout_split="dev",
            vocabulary=vocabulary,
            **flags,
        )
        == 0
    )
    train = read_jsonl(output / "train.jsonl")
    assert [pair.query for pair in train] == [p.query for p in PAIRS[3:]]
    heldout = read_collection(output / "heldout")
    assert heldout.relevant == [{0: 2}, {1: 2}, {2: 2}]
    assert len(heldout.documents) == 97


def test_refuses_to_hold_out_what_nothing_answers(
    tmp_path, source, vocabulary, capsys
):
    beir = tmp_path / "beir"
    write_beir(beir, as_beir(PAIRS[:5]), "dev")
    (beir / "qrels" / "dev.tsv").write_text("p1\tp2\t0\n")
    flags = {"source": source, "heldout_source": beir, "vocabulary": vocabulary}
    assert prepare(output=tmp_path / "data", **flags) == 1
    assert "96 pairs and 0 relevant documents" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_other_judgements_are_another_source(
    tmp_path, source, vocabulary, capsys
):
    beir = tmp_path / "beir"
    write_beir(beir, as_beir(PAIRS[:5]), "dev")
    flags = {"source": source, "heldout_source": beir, "vocabulary": vocabulary}
    assert prepare(output=tmp_path / "data", **flags) == 0
    (beir / "qrels" / "dev.tsv").write_text("p1\tp2\t1\n")
    assert prepare(output=tmp_path / "data", **flags) == 1
    assert "files that have changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, message",
    [
        (
            {"heldout_source": "source.jsonl"},
            "`source` and `heldout_source` must give different queries",
        ),
        ({"source_split": "dev"}, "Only a BEIR folder has splits"),
        (
            {"source": "python", "source_split": "dev"},
            "`source_split` must be None: installed docstrings have no splits",
        ),
        (
            {"heldout_split": "dev"},
            "`heldout_split` must be None without `heldout_source`",
        ),
        ({"heldout": 0}, "`heldout` must be between 0 and 1. Received: 0.0"),
        ({"heldout": 1}, "`heldout` must be between 0 and 1. Received: 1.0"),
        ({"heldout": 1e-9}, "`source` must give pairs to train on and to"),
        ({"source": "pyhton"}, "No such file or directory: 'pyhton'"),
        ({"vocabulary": "none.txt"}, "No such file or directory: 'none.txt'"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path, source, vocabulary, capsys, monkeypatch, flags, message
):
    monkeypatch.chdir(tmp_path)
    flags = {"source": source, "vocabulary": vocabulary} | flags
    assert prepare(output=tmp_path / "data", **flags) == 1
    error = capsys.readouterr().err
    assert error.startswith("training.prepare: error: ") and message in error
    assert len(error.splitlines()) == 1
    assert set(tmp_path.iterdir()) == {source, vocabulary}


def test_names_the_line_of_a_malformed_source(tmp_path, source, capsys):
    with open(source, "a") as stream:
        stream.write('{"query": "q"}\n')
    assert prepare(source=source, output=tmp_path / "data") == 1
    assert (
        f"{source}:98: a line must have 'document'" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "name, text", [("file", "text"), ("manifest.json", '{"name": "mine"}')]
)
def test_leaves_other_folders_alone(tmp_path, source, capsys, name, text):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / name).write_text(text)
    assert prepare("--overwrite", source=source, output=precious) == 1
    assert "must be a new folder, or one that" in capsys.readouterr().err
    assert content(precious) == {name: text.encode()}


@pytest.mark.slow
def test_docstrings_of_this_machine(tmp_path):
    assert prepare(output=tmp_path / "data") == 0
    heldout, _ = read_pairs(tmp_path / "data" / "heldout")
    assert len(heldout) >= 2_500
    assert len({pair.query.lower() for pair in heldout}) == len(heldout)
    train = read_jsonl(pathlib.Path(tmp_path, "data", "train.jsonl"))
    assert not {p.document for p in train} & {p.document for p in heldout}
