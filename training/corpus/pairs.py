"""Query-document pairs: files of JSON lines, BEIR folders, SQuAD's JSON."""

import collections
import os
import pathlib
import re
import typing
from collections.abc import Sequence

from keras_fixedhead import beir
from training.corpus.datasets import is_named, read_records
from training.corpus.squad import read_squad

_NEGATIVE = re.compile(r"negative(_\d+)?")


class Pair(typing.NamedTuple):
    """One query, a document that answers it, and some that do not."""

    id: str
    query: str
    document: str
    negatives: tuple[str, ...] = ()


def read_pairs(
    source: str | os.PathLike, split: str | None = None
) -> tuple[list[Pair], dict[str, int]]:
    """Reads pairs of a BEIR folder (of one `qrels/SPLIT.tsv`, or all), SQuAD's
    `.json` or JSON lines, and counts the other rows of the source by reason."""
    judged = read_judged(source, split)
    if judged is None:
        return read_jsonl(source), {}
    collection, unanswered = judged
    pairs, left_out = pairs_of(collection)
    return pairs, left_out | unanswered


def read_judged(
    source: str | os.PathLike, split: str | None = None
) -> tuple[beir.Beir, dict[str, int]] | None:
    """Reads a source of `read_pairs`; `None` if it is a file of pairs.

    Also counts SQuAD's questions without an answer, if there are any.
    """
    source = pathlib.Path(source)
    if source.is_dir():
        # Another split may judge the other queries.
        return beir.read_beir(source, split), {}
    if split is not None:
        raise ValueError(
            "Only a BEIR folder has splits. "
            f"Received: split {split!r} of {str(source)!r}"
        )
    if source.suffix != ".json":
        return None
    collection = read_squad(source)
    count = len(collection.queries) - len(collection.judgements)
    return collection, {"questions without an answer": count} if count else {}


def read_jsonl(path: str | os.PathLike) -> list[Pair]:
    """Reads pairs from JSON lines, or from the examples of a named dataset.

    Names are ours or sentence-transformers'; `id` is its number by default.
    """
    pairs: dict[str, Pair] = {}
    records = read_records(path) if is_named(path) else beir.read_records(path)
    for where, record in records:
        query = _either(record, "query", "anchor", where)
        document = _either(record, "document", "positive", where)
        # It ends in the number of a line, or of an example in brackets.
        number = re.findall(r"\d+", where)[-1]
        pair = Pair(
            beir.identifier(record.get("id", number), "id", where),
            beir.text(record, query, where),
            beir.text(record, document, where),
            _negatives(record, where),
        )
        if not all(text.strip() for text in (*pair[1:3], *pair.negatives)):
            raise ValueError(
                f"{where}: queries and documents must not be blank. "
                f"Received: {record}"
            )
        if pair.id in pairs:
            raise ValueError(
                f"{where}: the id {pair.id!r} was on an earlier line; ids "
                "must be unique."
            )
        pairs[pair.id] = pair
    return list(pairs.values())


def _either(record, ours, theirs, where):
    if (ours in record) == (theirs in record):
        raise ValueError(
            f"{where}: a line must have {ours!r} or {theirs!r}, one of them. "
            f"Received: {record}"
        )
    return ours if ours in record else theirs


def _negatives(record, where):
    names = filter(_NEGATIVE.fullmatch, record)
    names = sorted(names, key=lambda name: (len(name), name))
    texts = record.get("negatives", [])
    if not isinstance(texts, list) or (names and "negatives" in record):
        raise ValueError(
            f"{where}: 'negatives' must be a list of strings, and not beside "
            f"'negative' or 'negative_1'. Received: {record}"
        )
    return (
        *(beir.text({"negatives": text}, "negatives", where) for text in texts),
        *(beir.text(record, name, where) for name in names),
    )


def write_jsonl(path: str | os.PathLike, pairs: Sequence[Pair]) -> None:
    """Writes pairs as `read_jsonl` reads them."""
    records = [pair._asdict() for pair in pairs]
    for record in records:
        if not record["negatives"]:
            del record["negatives"]
    beir.write_records(path, records)


def pairs_of(collection: beir.Beir) -> tuple[list[Pair], dict[str, int]]:
    """Turns judgements above 0 into pairs, and counts the others by reason.

    Documents that are judged 0 or less for a query are its negatives.
    """
    documents, queries, judgements = collection
    found: dict[tuple[str, str], None] = {}
    negatives: dict[str, list[str]] = {}
    left_out: collections.Counter[str] = collections.Counter()
    for query, document, score in judgements:
        if not queries[query] or not documents[document]:
            left_out["judgements of blank texts"] += 1
        elif score > 0:
            left_out["judgements made before"] += (query, document) in found
            found[query, document] = None
        else:
            negatives.setdefault(query, []).append(documents[document])
    pairs = [
        Pair(
            f"{query}/{document}",
            queries[query],
            documents[document],
            tuple(negatives.get(query, ())),
        )
        for query, document in found
    ]
    answered = {query for query, _ in found}
    for query, texts in negatives.items():
        left_out[
            "irrelevant documents, negatives of pairs"
            if query in answered
            else "irrelevant to queries without an answer"
        ] += len(texts)
    return pairs, {reason: n for reason, n in left_out.items() if n}


def as_beir(pairs: Sequence[Pair]) -> beir.Beir:
    """Turns pairs into a collection, with one copy of each text."""
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    judgements: dict[beir.Judgement, None] = {}
    for pair in pairs:
        query = queries.setdefault(pair.query, pair.id)
        document = documents.setdefault(pair.document, pair.id)
        judgements[beir.Judgement(query, document, 1)] = None
    return beir.Beir(
        {name: text for text, name in documents.items()},
        {name: text for text, name in queries.items()},
        list(judgements),
    )
