"""SQuAD's JSON: articles, their paragraphs, and questions about these."""

import collections
import dataclasses
import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterator

from keras_fixedhead import beir
from training.corpus.datasets import is_named, read_records

_NOT_SQUAD = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    json.JSONDecodeError,
)


class Answer(typing.NamedTuple):
    """An answer, and where it starts in the context (`None` if unknown)."""

    text: str
    start: int | None


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its context, and the answers that different people gave."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


def read_squad(path: str | os.PathLike) -> beir.Beir:
    """Reads a `.json` file of SQuAD 1.1 or 2.0 as a retrieval collection.

    A possible question is a query for the paragraph it was written for, often
    not the only one that answers it.
    """
    documents, queries, judgements = {}, {}, []
    for name, context, questions in _paragraphs(path):
        documents[name] = context.strip()
        for _, question in questions:
            queries[question["id"]] = question["question"].strip()
            if not question.get("is_impossible", False):
                judgements.append(beir.Judgement(question["id"], name, 1))
    return beir.Beir(documents, queries, judgements)


def read_questions(
    source: str | os.PathLike,
    say: Callable[[str], None] | None = None,
    answered: bool = True,
) -> list[Question]:
    """Reads the questions that have an answer (all, if not `answered`).

    `say` is told what is left out and what answers are not where data say.
    """
    name = os.fspath(source)
    records = (_dataset_records if is_named(name) else _json_records)(name)
    questions = []
    counts: collections.Counter[str] = collections.Counter()
    for where, record in records:
        if answered and record.get("is_impossible", False):
            counts["impossible questions, left out"] += 1
            continue
        context = record["context"]
        try:
            answers = tuple(
                _located(
                    answer["text"], answer["answer_start"], context, counts
                )
                for answer in record["answers"]
            )
        except _NOT_SQUAD as error:
            raise ValueError(
                f"{where}: 'answers' must be like SQuAD's. Received: {error!r}"
            ) from error
        if answered and not answers:
            counts["questions without an answer, left out"] += 1
            continue
        question = record["question"].strip()
        questions.append(Question(record["id"], question, context, answers))
    if say is not None:
        for kind, count in sorted(counts.items()):
            say(f"{name}: {count} {kind}")
    return questions


def _located(text, start, context, counts):
    """Corrects where an answer starts, if its text is there only once."""
    if start >= 0 and context.startswith(text, start) and text:
        return Answer(text, start)
    first = context.find(text) if text else -1
    if first < 0 or first != context.rfind(text):
        counts["answers whose place is not known"] += 1
        return Answer(text, None)
    counts["answers that stand elsewhere, found there"] += 1
    return Answer(text, first)


def _json_records(path):
    for _, context, questions in _paragraphs(path):
        for where, question in questions:
            yield where, {"answers": [], **question, "context": context}


def _dataset_records(source):
    columns = ("id", "question", "context", "answers", "is_impossible")
    for where, record in read_records(source, columns):
        if missing := {*columns[:-1]} - record.keys():
            raise ValueError(
                f"{where}: must have SQuAD's features. It lacks: "
                f"{', '.join(sorted(missing))}"
            )
        answers = record["answers"]
        places = zip(answers["text"], answers["answer_start"], strict=True)
        record["answers"] = [
            {"text": text, "answer_start": start} for text, start in places
        ]
        yield where, record


def _paragraphs(
    path: str | os.PathLike,
) -> Iterator[tuple[str, str, list[tuple[str, dict]]]]:
    """Yields name, context, and where each question is and the question."""
    ids = set()
    where = str(path)
    try:
        articles = json.loads(pathlib.Path(path).read_bytes())["data"]
        for i, article in enumerate(articles):
            where = f"{path}: data[{i}]"
            for j, paragraph in enumerate(article["paragraphs"]):
                where = place = f"{path}: data[{i}].paragraphs[{j}]"
                context = beir.text(paragraph, "context", where)
                questions = []
                for k, question in enumerate(paragraph["qas"]):
                    where = f"{place}.qas[{k}]"
                    key = beir.identifier(question["id"], "id", where)
                    if key in ids:
                        raise ValueError(
                            f"{where}: the id {key!r} was there before; ids "
                            "must be unique."
                        )
                    ids.add(key)
                    beir.text(question, "question", where)
                    questions.append((where, question))
                yield f"{i}.{j}", context, questions
    except _NOT_SQUAD as error:
        raise ValueError(
            f"{where} must be like SQuAD's JSON, an object with a list `data`. "
            f"Received: {error!r}"
        ) from error
