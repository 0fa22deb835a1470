"""A BEIR folder as rows: documents, queries and which answers which."""

import dataclasses
import hashlib
import json

from keras_fixedhead import beir


@dataclasses.dataclass(frozen=True)
class Collection:
    """What is searched, and the judged queries of one split.

    Attributes:
        document_ids: list of N names.
        documents: list of N texts; a title stands before its text.
        queries: list of Q texts.
        relevant: list of Q lists of row numbers of `documents`.
    """

    document_ids: list
    documents: list
    queries: list
    relevant: list

    def fingerprint(self):
        """Returns a SHA-256 of the documents and their names."""
        digest = hashlib.sha256()
        for name, text in zip(self.document_ids, self.documents):
            digest.update(json.dumps([name, text]).encode())
        return digest.hexdigest()


def read(folder, split="test"):
    """Reads a BEIR folder.

    Args:
        folder: path of a folder with `corpus.jsonl`, `queries.jsonl` and
            `qrels/<split>.tsv`.
        split: name of the judgements.

    Returns:
        A `Collection` of the queries that have a relevant document.

    Raises:
        OSError: if a file is missing.
        ValueError: naming the file and the line that is malformed.
    """
    documents, queries, judgements = beir.read_beir(folder, split)
    if not documents:
        raise ValueError(f"`collection` {folder} has no documents.")
    rows = {name: row for row, name in enumerate(documents)}
    relevant = {}
    for query, document, score in judgements:
        if score > 0:
            relevant.setdefault(query, []).append(rows[document])
    return Collection(
        list(documents),
        list(documents.values()),
        [queries[name] for name in relevant],
        list(relevant.values()),
    )
