"""Measuring a preset on collections, against ranking by hand.

And a public encoder on public collections, beside figures known for it.
"""

import json

import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextEmbedder, beir
from tests import minilm
from tests.training import tiny
from training import embedding_report, evaluate
from training.retrieval.evaluation import pareto_front

TEXTS = tiny.texts(23)


@pytest.fixture(scope="module")
def embedder():
    return tiny.embedder(prompts={"query": "one two "})


@pytest.fixture(scope="module")
def preset(embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "preset"
    embedder.save_to_preset(str(folder))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two collections, of other queries; half of the queries is judged."""
    made = []
    for number in range(2):
        folder = tmp_path_factory.mktemp("data") / f"part{number}"
        documents = {f"d{i}": text for i, text in enumerate(TEXTS)}
        queries = {
            f"q{i}": " ".join(TEXTS[i].split()[number : 2 + number])
            for i in range(13)
        }
        judgements = [
            beir.Judgement(f"q{i}", f"d{(i + number) % 23}", 1 + i % 2)
            for i in range(0, 13, 2)
        ]
        beir.write_beir(
            folder, beir.Beir(documents, queries, judgements), "test"
        )
        made.append(folder)
    return made


def ranks(embedder, folder, query_encoder=None):
    """Of each judged query, the rank of its document by exact search."""
    found = beir.read_collection(folder)
    documents = embedder.encode_text(found.documents, verbose=0)
    queries = (query_encoder or embedder).encode_text(
        found.queries, prompt="query", verbose=0
    )
    order = np.argsort(-queries @ documents.T, axis=1)
    return np.array(
        [
            1 + row.tolist().index(next(iter(relevant)))
            for row, relevant in zip(order, found.relevant)
        ]
    )


def gains(ranks):
    return np.mean(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0))


def run(verb, preset, folders, *words):
    return verb.main(
        [
            *("--model", str(preset), "--collection", *map(str, folders)),
            *words,
        ]
    )


def test_figures_of_collections(preset, embedder, folders, tmp_path, capsys):
    output = tmp_path / "figures.json"
    words = ("--recall", "3", "--dimension", "5", "--output", str(output))
    assert run(evaluate, preset, folders, *words) == 0
    printed = capsys.readouterr().out
    assert "MAP" in printed and "mean of 2 collections" in printed
    found = json.loads(output.read_text())
    assert list(found) == [*map(str, folders), "mean"]
    expected = []
    for folder in folders:
        right = ranks(embedder, folder)
        exact = found[str(folder)]["exact"]
        assert exact == pytest.approx(
            {
                "nDCG@10": gains(right),
                "AP": np.mean(1 / right),
                "R@3": np.mean(right <= 3),
                "RR@10": np.mean(np.where(right <= 10, 1 / right, 0)),
            }
        )
        expected.append(exact["AP"])
        assert list(found[str(folder)]) == ["exact", "index", "BM25", "fusion"]
    assert found["mean"]["exact"]["AP"] == pytest.approx(np.mean(expected))
    assert found["mean"]["index"] != found["mean"]["exact"]


def test_queries_of_another_model(preset, embedder, folders, tmp_path, capsys):
    size = embedder.embedding_size
    other = tiny.embedder(1, prompts={"query": "three "})
    for name, dim in (("query", size), ("wrong", size - 1)):
        query_encoder = FixedHeadTextEmbedder(
            other.backbone, other.preprocessor, projection_dim=dim
        )
        query_encoder.save_to_preset(str(tmp_path / name))
    query_encoder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "query"))
    words = ("--query_model", str(tmp_path / "query"))
    output = tmp_path / "figures.json"
    assert run(evaluate, preset, folders, *words, "--output", str(output)) == 0
    found = json.loads(output.read_text())
    for folder in folders:
        right = ranks(embedder, folder, query_encoder)
        assert (right != ranks(embedder, folder)).any()
        precision = found[str(folder)]["exact"]["AP"]
        assert precision == pytest.approx(np.mean(1 / right))
    words = ("--query_model", str(tmp_path / "wrong"))
    assert run(evaluate, preset, folders, *words) == 1
    error = capsys.readouterr().err
    assert f"as many numbers as `model`, {size}" in error


def test_a_blank_document_is_not_found(preset, tmp_path, capsys):
    """It is close to many queries; judged relevant, it counts as missed."""
    documents = {"d0": TEXTS[0], "blank": "\x01", "d1": TEXTS[1]}
    judgements = [beir.Judgement("q", name, 1) for name in ("d1", "blank")]
    data = beir.Beir(documents, {"q": TEXTS[1]}, judgements)
    beir.write_beir(tmp_path / "part", data, "test")
    output = tmp_path / "figures.json"
    words = ("--recall", "3", "--output", str(output))
    assert run(evaluate, preset, [tmp_path / "part"], *words) == 0
    found = json.loads(output.read_text())[str(tmp_path / "part")]
    for way in ("exact", "BM25", "fusion"):
        assert (found[way]["R@3"], found[way]["RR@10"]) == (0.5, 1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 documents (without 1 that are blank: 'blank')" in printed


@pytest.mark.parametrize(
    "words, message",
    [
        (["--split", "train"], "train.tsv"),
        (["--dimension", "0"], "`dimension` must be"),
        (["--recall", "0"], "`recall` must be"),
        (["--output", "no/folder/x.json"], "`output` must be"),
        (["--batch_size", "-1"], "positive integer. Received: batch_size=-1"),
    ],
)
def test_refuses(preset, folders, capsys, words, message):
    assert run(evaluate, preset, folders, *words) == 1
    assert message in capsys.readouterr().err


def test_report_of_sizes(preset, embedder, folders, tmp_path, capsys, drawn):
    words = ("--output", str(tmp_path), "--dimensions", "5", "--rounds", "1")
    assert run(embedding_report, preset, folders, *words) == 0
    assert "95% of" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.json",
        "report.png",
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    rows = report["rows"]
    # All numbers and two reductions, four precisions, two searches.
    assert len(rows) == 3 * 4 * 2
    native = rows[0]
    assert (native["reduction"], native["precision"]) == ("native", "float32")
    assert (native["dimension"], native["bytes_per_document"]) == (13, 52)
    assert native["recall_at_100"] == 1
    assert native["difference"] == 0 and native["interval"] == [0, 0]
    assert native["ndcg_at_10"] == pytest.approx(
        np.mean([gains(ranks(embedder, folder)) for folder in folders])
    )
    for row in rows:
        low, high = row["interval"]
        assert low <= row["difference"] <= high
        assert row["difference"] == pytest.approx(
            row["ndcg_at_10"] - native["ndcg_at_10"]
        )
        assert row["milliseconds_per_query"] > 0
    assert 0 < report["bm25"]["ndcg_at_10"] <= 1
    [figure] = drawn
    enough = min(
        row["bytes_per_document"] for row in rows if row["difference"] >= -0.002
    )
    assert figure.get_suptitle().startswith(
        f"{enough:.0f} bytes a document keep nDCG@10 within 0.002 of 52 bytes"
    )


def test_front_by_hand():
    rows = [
        {"ndcg_at_10": gain, "bytes_per_document": size}
        for gain, size in [
            (0.5, 8), (0.5, 11), (0.4, 16), (0.5, 16), (0.7, 16), (0.6, 32),
            (0.8, 64),
        ]
    ]  # fmt: skip
    front = [tuple(row.values()) for row in pareto_front(rows)]
    assert front == [(0.5, 8), (0.7, 16), (0.8, 64)]


@pytest.mark.slow
def test_minilm_ranks_as_it_is_known_to(tmp_path):
    folders = minilm.collections()
    preset = minilm.save_preset(tmp_path / "preset")
    output = tmp_path / "figures.json"
    words = ("--output", str(output))
    assert run(evaluate, preset, folders.values(), *words) == 0
    found = json.loads(output.read_text())
    for name, folder in folders.items():
        assert found[str(folder)]["exact"]["nDCG@10"] == pytest.approx(
            minilm.NDCG[name], abs=0.002
        )
