"""Query-document pairs: files of JSON lines, BEIR folders, SQuAD's JSON."""

import collections
import os
import pathlib
import re
import typing
from collections.abc import Sequence

# `keras_fixedhead` is imported where it is used: it brings Keras, which the
# processes that read docstrings into pairs need not wait for.


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
    """Reads pairs of any format, told by the name.

    Args:
        source: a folder is one of BEIR, `.json` SQuAD's, and any other file
            one of JSON lines.
        split: which `qrels/SPLIT.tsv` of a BEIR folder; `None` takes all.

    Returns:
        The pairs, and how many other rows (judgements, or questions of SQuAD)
        there are for which reason.

    Raises:
        OSError, ValueError: See `read_jsonl`, `pairs_of`,
            `training.corpus.squad.read_squad` and `keras_fixedhead.beir`.
    """
    collection = read_judged(source, split)
    if collection is None:
        return read_jsonl(source), {}
    pairs, left_out = pairs_of(collection)
    return pairs, left_out | unanswered(source, collection)


def unanswered(source: str | os.PathLike, collection) -> dict[str, int]:
    """How many questions of SQuAD have no answer, if any.

    Of a BEIR folder another split may judge the other queries.
    """
    if pathlib.Path(source).is_dir():
        return {}
    judged = {judgement.query for judgement in collection.judgements}
    count = len(collection.queries.keys() - judged)
    return {"questions without an answer": count} if count else {}


def read_judged(source: str | os.PathLike, split: str | None = None):
    """Reads a `keras_fixedhead.beir.Beir`; `None` from a file of pairs.

    Args:
        source: As in `read_pairs`.
        split: As in `read_pairs`.

    Raises:
        OSError, ValueError: As `read_pairs`; or `split` is given for a file,
            which has none.
    """
    from keras_fixedhead import beir
    from training.corpus.squad import read_squad

    source = pathlib.Path(source)
    if source.is_dir():
        return beir.read_beir(source, split)
    if split is not None:
        raise ValueError(
            "Only a BEIR folder has splits. "
            f"Received: split {split!r} of {str(source)!r}"
        )
    return read_squad(source) if source.suffix == ".json" else None


def read_jsonl(path: str | os.PathLike) -> list[Pair]:
    """Reads pairs from a file of one JSON object a line.

    Args:
        path: File whose lines are objects with the strings `query` and
            `document`; optionally an `id` without whitespace (the line's
            number where it is missing), and `negatives`, a list of documents
            that do not answer the query. Names of sentence-transformers may
            stand for these: `anchor` for the query, `positive` for the
            document, and `negative`, or `negative_1`, `negative_2`, ..., for
            negatives.

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
            beir.text(record, _either(record, "query", "anchor", where), where),
            beir.text(
                record, _either(record, "document", "positive", where), where
            ),
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
    """The one of two names that the record has."""
    if (ours in record) == (theirs in record):
        raise ValueError(
            f"{where}: a line must have {ours!r} or {theirs!r}, one of them. "
            f"Received: {record}"
        )
    return ours if ours in record else theirs


def _negatives(record, where):
    from keras_fixedhead import beir

    names = sorted(
        filter(_NEGATIVE.fullmatch, record), key=lambda n: (len(n), n)
    )
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
    """Writes pairs as one JSON object a line, as `read_jsonl` reads them."""
    from keras_fixedhead import beir

    beir.write_records(
        path,
        (
            {
                name: value
                for name, value in pair._asdict().items()
                if name != "negatives" or value
            }
            for pair in pairs
        ),
    )


def pairs_of(collection) -> tuple[list[Pair], dict[str, int]]:
    """The positive judgements of a collection as pairs.

    Args:
        collection: A `keras_fixedhead.beir.Beir`.

    Returns:
        One pair for each query and document that are judged above 0, in the
        order of the judgements; what is judged 0 or less for its query are
        its negatives. And how many other judgements there are for which
        reason, so that both add up to all.
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


def as_beir(pairs: Sequence[Pair]):
    """Pairs as a `keras_fixedhead.beir.Beir`.

    Queries and documents have the identifier of the first pair that they are
    in: a text that is in several is there once, or a search that finds it
    would count as wrong.
    """
    from keras_fixedhead import beir

    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    judgements = {}
    for pair in pairs:
        query = queries.setdefault(pair.query, pair.id)
        document = documents.setdefault(pair.document, pair.id)
        judgements[beir.Judgement(query, document, 1)] = None
    return beir.Beir(
        {name: text for text, name in documents.items()},
        {name: text for text, name in queries.items()},
        list(judgements),
    )
