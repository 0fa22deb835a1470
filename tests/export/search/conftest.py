"""A judged collection, an index of it, and what Keras ranks."""

import functools

import numpy as np
import pytest

from export.index import index_folder
from export.index.manifest import Options
from keras_fixedhead import beir

QUERIES = {"q1": "brown fox", "q2": "read lines", "q3": "not judged"}
QRELS = [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d4", 1), ("q1", "d3", 0)]


@pytest.fixture(scope="session")
def documents():
    """The texts by name."""
    return {
        "d1": "the quick brown fox jumps over the lazy dog",
        "d2": "open the file and read it line by line",
        "d3": "return the sum of two numbers",
        "d4": "a dog reads two files \x1b[31m",
        "d5": "sum of the numbers in a file",
    }


@pytest.fixture(scope="session")
def folder(documents, tmp_path_factory):
    """A BEIR folder."""
    folder = tmp_path_factory.mktemp("made") / "beir"
    judgements = [beir.Judgement(*row) for row in QRELS]
    beir.write_beir(folder, beir.Beir(documents, QUERIES, judgements), "test")
    return folder


@pytest.fixture(scope="session")
def made(folder, source, opened, tmp_path_factory):
    """The folder of an index of the documents."""
    output = tmp_path_factory.mktemp("made")
    index_folder.update(output, folder, source, opened, Options(), 2)
    return output


@pytest.fixture(scope="session")
def oracle(embedder, documents):
    """A function of a query to the documents, best first, by Keras."""
    texts = list(documents.values())
    vectors = np.array(embedder(embedder.preprocessor(texts)))

    @functools.cache
    def best(query):
        inputs = embedder.preprocessor([f"query: {query}"])
        scores = np.array(embedder(inputs))[0] @ vectors.T
        order = np.argsort(-scores)
        return [list(documents)[row] for row in order], scores[order]

    return best
