"""From a BEIR folder and a served model to figures, picture and index."""

import json

import numpy as np
import pytest

from export import cli, index, search
from keras_fixedhead import beir, retrieval

DOCUMENTS = {
    "d1": "the quick brown fox jumps over the lazy dog",
    "d2": "open the file and read it line by line",
    "d3": "return the sum of two numbers",
    "d4": "a dog reads two files",
    "d5": "sum of the numbers in a file",
}
QUERIES = {"q1": "brown fox", "q2": "read lines", "q3": "not judged"}
QRELS = [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d4", 1), ("q1", "d3", 0)]


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    write_lines(
        folder / "corpus.jsonl",
        (
            json.dumps({"_id": name, "title": "", "text": text})
            for name, text in DOCUMENTS.items()
        ),
    )
    write_lines(
        folder / "queries.jsonl",
        (json.dumps({"_id": n, "text": t}) for n, t in QUERIES.items()),
    )
    rows = [
        "query-id\tcorpus-id\tscore",
        *("\t".join(map(str, q)) for q in QRELS),
    ]
    write_lines(folder / "qrels" / "test.tsv", rows)
    return folder


def run(folder, output, url, *words):
    return cli.run(
        search.main,
        search.Arguments,
        [
            *("--collection", str(folder), "--output", str(output)),
            *("--model_name", "tiny", "--server", url, "--batch_size", "2"),
            *words,
        ],
    )


@pytest.mark.parametrize("url", ["grpc_url", "rest_url"])
def test_measures(folder, tmp_path, server, embedder, capsys, url):
    output = tmp_path / "run"
    assert run(folder, output, getattr(server, url)) == 0
    figures = json.loads((output / "metrics.json").read_text())
    # 5 documents and 2 queries in batches of 2.
    assert figures["served_requests"] == 3 + 1
    assert figures["documents"] == 5
    assert figures["queries"] == 2
    assert figures["model_version"] == 3
    # The oracle: the same ranking by hand, with the Keras model.
    found = beir.read_collection(folder)
    documents = np.array(embedder(embedder.preprocessor(found.documents)))
    queries = [f"query: {text}" for text in found.queries]
    scores = np.array(embedder(embedder.preprocessor(queries))) @ documents.T
    order = np.argsort(-scores, axis=1)
    ranks = [
        1 + min(order[q].tolist().index(row) for row in rows)
        for q, rows in enumerate(found.relevant)
    ]
    assert figures["encoder"]["mrr@10"] == pytest.approx(
        np.mean([1 / rank for rank in ranks])
    )
    assert figures["encoder"]["recall@10"] == 1
    assert figures["bm25"]["mrr@10"] == 1
    assert figures["fusion"].keys() == figures["encoder"].keys()
    assert (output / "retrieval.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "brown fox" in printed
    assert "recall@10" in printed


def test_index_is_kept_and_checked(folder, tmp_path, server, capsys):
    output = tmp_path / "run"
    run(folder, output, server.grpc_url)
    assert "embedded and indexed" in capsys.readouterr().out
    words = ("--query", "a fox", "--query", "two", "--k", "3")
    assert run(folder, output, server.grpc_url, *words) == 0
    printed = capsys.readouterr().out
    assert "used again" in printed
    assert printed.count("rank") == 2
    # Another model under the same number: its embeddings are not these.
    other = np.random.default_rng(0).normal(size=(5, 13))
    kept = output / "index.faiss"
    before = kept.read_bytes()
    index.write(kept, retrieval.build_index(other))
    run(folder, output, server.grpc_url)
    assert "embedded and indexed" in capsys.readouterr().out
    assert kept.read_bytes() == before
    # Other documents, if only for a reader: their embeddings are the same.
    lines = (folder / "corpus.jsonl").read_text().replace("lazy", "LAZY")
    (folder / "corpus.jsonl").write_text(lines)
    run(folder, output, server.grpc_url)
    assert "embedded and indexed" in capsys.readouterr().out


def test_serves_itself(folder, tmp_path, base_path, capsys):
    status = cli.run(
        search.main,
        search.Arguments,
        [
            *("--collection", str(folder), "--output", str(tmp_path / "run")),
            *("--model_name", "tiny", "--serve", str(base_path)),
            *("--query", "a dog"),
        ],
    )
    assert status == 0
    assert "a dog" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Pass either `server`"),
        (["--server", "nowhere"], "`server` must be"),
        (
            ["--serve", "nowhere"],
            "did not start: error: `model_base_path`",
        ),
        (["--server", "grpc://x", "--split", "no"], "no.tsv"),
    ],
)
def test_command_line_errors(folder, tmp_path, capsys, words, message):
    status = cli.run(
        search.main,
        search.Arguments,
        [
            *("--collection", str(folder), "--output", str(tmp_path / "run")),
            *("--model_name", "tiny", *words),
        ],
    )
    assert status == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
