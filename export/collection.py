"""A BEIR folder in memory: documents, queries and which answers which.

The format: Thakur et al. 2021, "BEIR: A Heterogeneous Benchmark for Zero-shot
Evaluation of Information Retrieval Models".
"""

import csv
import dataclasses
import hashlib
import json


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


def _read_records(path):
    """Yields the objects of a JSON-lines file, with their place in it."""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{path}, line {number}"
            try:
                record = json.loads(line)
                yield record["_id"], record.get("title", ""), record["text"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{place} is no JSON object with `_id` and `text`."
                ) from error


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
    documents = {
        name: f"{title}\n\n{text}" if title else text
        for name, title, text in _read_records(folder / "corpus.jsonl")
    }
    if not documents:
        raise ValueError(f"`collection` {folder} has no documents.")
    queries = {
        name: text for name, _, text in _read_records(folder / "queries.jsonl")
    }
    rows = {name: row for row, name in enumerate(documents)}
    relevant = {}
    path = folder / "qrels" / f"{split}.tsv"
    with open(path, encoding="utf-8", newline="") as lines:
        judgements = csv.DictReader(lines, delimiter="\t")
        for judgement in judgements:
            try:
                query = judgement["query-id"]
                row = rows[judgement["corpus-id"]]
                if query not in queries:
                    raise KeyError(query)
                if int(judgement["score"]) > 0:
                    relevant.setdefault(query, []).append(row)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {judgements.line_num} is no query-id, "
                    "corpus-id and score of a known query and document."
                ) from error
    return Collection(
        list(documents),
        list(documents.values()),
        [queries[name] for name in relevant],
        list(relevant.values()),
    )
