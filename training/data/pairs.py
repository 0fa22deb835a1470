"""Query-document pairs: a file of JSON lines, or from and to a BEIR folder."""

import collections
import os
import typing
from collections.abc import Sequence

# `keras_fixedhead` is imported where it is used: it brings Keras, which the
# processes that read docstrings into pairs need not wait for.


class Pair(typing.NamedTuple):
    """One query and the one document that answers it."""

    id: str
    query: str
    document: str


def read_jsonl(path: str | os.PathLike) -> list[Pair]:
    """Reads pairs from a file of one JSON object a line.

    Args:
        path: File whose lines are objects with the strings `query` and
            `document`, and optionally an `id` without whitespace. A line
            without an `id` takes its line number.

    Returns:
        The pairs, in the order of the file.

    Raises:
        ValueError: Names the file and the line that is malformed, or whose
            `id` was there before.
    """
    from keras_fixedhead import beir

    pairs: dict[str, Pair] = {}
    for where, record in beir.read_records(path):
        number = where.rpartition(":")[2]
        pair = Pair(
            beir.identifier(record.get("id", number), "id", where),
            beir.text(record, "query", where),
            beir.text(record, "document", where),
        )
        if not pair.query.strip() or not pair.document.strip():
            raise ValueError(
                f"{where}: the query and the document must not be blank. "
                f"Received: {record}"
            )
        if pair.id in pairs:
            raise ValueError(
                f"{where}: the id {pair.id!r} was on an earlier line; ids "
                "must be unique."
            )
        pairs[pair.id] = pair
    return list(pairs.values())


def write_jsonl(path: str | os.PathLike, pairs: Sequence[Pair]) -> None:
    """Writes pairs as one JSON object a line, as `read_jsonl` reads them."""
    from keras_fixedhead import beir

    beir.write_records(path, (pair._asdict() for pair in pairs))


def read_beir_pairs(
    folder: str | os.PathLike,
) -> tuple[list[Pair], dict[str, int]]:
    """Reads the positive judgements of a BEIR folder as pairs.

    Args:
        folder: Folder of `keras_fixedhead.beir`; all its splits are read.

    Returns:
        One pair for each query and document that are judged above 0, in the
        order of the judgements; and how many judgements were left out for
        which reason.

    Raises:
        OSError, ValueError: See `keras_fixedhead.beir.read_beir`.
    """
    from keras_fixedhead import beir

    documents, queries, judgements = beir.read_beir(folder)
    pairs: dict[str, Pair] = {}
    left_out: collections.Counter[str] = collections.Counter()
    for query, document, score in judgements:
        if score <= 0:
            left_out["judged irrelevant"] += 1
        elif not queries[query] or not documents[document]:
            left_out["judgements of blank texts"] += 1
        else:
            key = f"{query}/{document}"
            pairs[key] = Pair(key, queries[query], documents[document])
    return list(pairs.values()), dict(left_out)


def write_beir_pairs(folder: str | os.PathLike, pairs: Sequence[Pair]) -> None:
    """Writes pairs as a BEIR folder whose one split is `test`.

    Each pair becomes a query and a document of the same identifier, which
    judge each other 1.
    """
    from keras_fixedhead import beir

    beir.write_beir(
        folder,
        beir.Beir(
            {pair.id: pair.document for pair in pairs},
            {pair.id: pair.query for pair in pairs},
            [beir.Judgement(pair.id, pair.id, 1) for pair in pairs],
        ),
        split="test",
    )
