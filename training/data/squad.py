"""SQuAD's JSON: articles, their paragraphs, and questions about these."""

import json
import os
import pathlib

from keras_fixedhead import beir


def read_squad(path: str | os.PathLike) -> beir.Beir:
    """Reads a file of SQuAD's format as a retrieval collection.

    Each question asks for the paragraph it was written for (Rajpurkar et al.
    2016, https://arxiv.org/abs/1606.05250), which often is not the only one
    that answers it. Questions marked as impossible ask for none.

    Args:
        path: A `.json` file, of version 1.1 or 2.0.

    Returns:
        Documents are paragraphs, without the titles of their articles, named
        by the numbers of article and paragraph; queries the questions, by
        their `id`.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not SQuAD's; names the file and where in it.
    """
    path = pathlib.Path(path)
    try:
        articles = json.loads(path.read_bytes())["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} must hold SQuAD's JSON, an object with a list `data`. "
            f"Received: {error}"
        ) from error
    documents, queries, judgements = {}, {}, []
    for where, name, paragraph in _paragraphs(articles, path):
        documents[name] = beir.text(paragraph, "context", where).strip()
        for number, question in enumerate(_list(paragraph, "qas", where)):
            place = f"{where}.qas[{number}]"
            key = beir.identifier(_get(question, "id", place), "id", place)
            if key in queries:
                raise ValueError(
                    f"{place}: the id {key!r} was there before; ids must be "
                    "unique."
                )
            queries[key] = beir.text(question, "question", place).strip()
            if not question.get("is_impossible", False):
                judgements.append(beir.Judgement(key, name, 1))
    return beir.Beir(documents, queries, judgements)


def _paragraphs(articles, path):
    """Yields where a paragraph is, its name, and the paragraph."""
    for i, article in enumerate(_list({"data": articles}, "data", path)):
        where = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_list(article, "paragraphs", where)):
            yield f"{where}.paragraphs[{j}]", f"{i}.{j}", paragraph


def _list(record, key, where):
    value = _get(record, key, where)
    if not isinstance(value, list):
        raise ValueError(
            f"{where}: {key!r} must be a list. Received: {value!r}"
        )
    return value


def _get(record, key, where):
    if not isinstance(record, dict) or key not in record:
        raise ValueError(
            f"{where}: must be an object with {key!r}. "
            f"Received: {str(record)[:80]}"
        )
    return record[key]
