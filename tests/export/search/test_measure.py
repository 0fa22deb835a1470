"""A judged collection measured by a model, by BM25 and by their fusion."""

import json
import shutil

import numpy as np
import pytest

from export import cli
from export.index import __main__ as index
from export.search import __main__ as search
from keras_fixedhead import beir


def run(*words):
    return cli.run(search.main, search.Arguments, [*map(str, words)])


def test_measures(folder, tmp_path, server, oracle, capsys):
    output = tmp_path / "run"
    words = ["--collection", folder, "--output", output, "--batch_size", "2"]
    words += ["--server", server.rest_url, "--model_name", "tiny"]
    assert run(*words) == 0
    figures = json.loads((output / "metrics.json").read_text())
    # 5 documents and 2 queries in batches of 2.
    assert figures["requests"] == 3 + 1
    assert figures["documents"] == 5
    assert figures["queries"] == 2
    assert figures["model_version"] == 3
    found = beir.read_collection(folder)
    ranks = [
        1 + min(oracle(query)[0].index(f"d{row + 1}") for row in rows)
        for query, rows in zip(found.queries, found.relevant)
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


@pytest.mark.parametrize("ranker", ["encoder", "bm25", "fusion"])
def test_measures_one_ranker(folder, made, tmp_path, server, ranker):
    words = ["--collection", folder, "--ranker", ranker]
    if ranker != "bm25":
        words += ["--server", server.grpc_url, "--model_name", "tiny"]
    for number, index_words in enumerate(([], ["--index", made])):
        output = tmp_path / f"run{number}"
        # BM25 needs no model. The index is of a SavedModel of the same name.
        assert run(*words, *index_words, "--output", output) == 0
        figures = json.loads((output / "metrics.json").read_text())
        assert {"encoder", "bm25", "fusion"} & figures.keys() == {ranker}
        assert (figures["requests"] == 0) == (ranker == "bm25")
    assert (tmp_path / "run0" / "index").exists() == (ranker != "bm25")


def test_measures_an_index_as_it_is(folder, tmp_path, server, capsys):
    collection = shutil.copytree(folder, tmp_path / "beir")
    output = tmp_path / "index"
    source = ["--server", server.grpc_url, "--model_name", "tiny"]
    words = ["--corpus", str(collection), "--output", str(output)]
    words += ["--precision", "int8", *source]
    assert cli.run(index.main, index.Arguments, words) == 0
    words = ["--collection", collection, "--index", output, *source]
    assert run(*words, "--output", tmp_path) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "13 numbers in int8, by tiny version 3, 0 of them" in printed
    assert (tmp_path / "metrics.json").exists()
    # Not of other documents, which would have been the index's end.
    kept = sorted(path.name for path in output.rglob("*"))
    with open(collection / "corpus.jsonl", "a") as stream:
        stream.write('{"_id": "d6", "text": "more"}\n')
    assert run(*words, "--output", tmp_path) == 1
    error = capsys.readouterr().err
    assert "document 6 is None there and 'd6' here" in error
    assert sorted(path.name for path in output.rglob("*")) == kept
