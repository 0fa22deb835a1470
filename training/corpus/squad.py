"""SQuAD's JSON: articles, their paragraphs, and questions about these."""

import collections
import dataclasses
import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterator

from keras_fixedhead import beir
from training.corpus.datasets import PREFIX, open_dataset


class Answer(typing.NamedTuple):
    """What a person answered.

    Attributes:
        text: The words.
        start: Where in the context they start; `None` if that is not known.
    """

    text: str
    start: int | None


@dataclasses.dataclass(frozen=True)
class Question:
    """A question whose answer is a part of a text.

    Attributes:
        id: Its name.
        question: The question, without white space around it.
        context: The text, as it is.
        answers: Those of different people.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


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
    documents, queries, judgements = {}, {}, []
    for where, name, paragraph in _paragraphs(path):
        documents[name] = beir.text(paragraph, "context", where).strip()
        for _, question in _questions(paragraph, where, queries):
            queries[question["id"]] = question["question"].strip()
            if not question.get("is_impossible", False):
                judgements.append(beir.Judgement(question["id"], name, 1))
    return beir.Beir(documents, queries, judgements)


def read_questions(
    source: str | os.PathLike,
    say: Callable[[str], None] | None = None,
    tfds_data_dir: str | os.PathLike | None = None,
    answered: bool = True,
) -> list[Question]:
    """Reads the questions that have an answer, or all.

    An answer that does not stand where the data say is looked for: where its
    text occurs once in the context, it starts there, else its place is not
    known. The text counts in figures all the same.

    Args:
        source: A `.json` file of SQuAD, of version 1.1 or 2.0, or
            `tfds:NAME[/CONFIG][:VERSION][:SPLIT]`, such as
            `tfds:squad/v1.1:validation`, which is prepared if it is not;
            without a split it is `train`.
        say: Called with a line on each kind of question that is left out, and
            of answer that is not where the data say.
        tfds_data_dir: Folder of TensorFlow datasets; `None` is their default.
        answered: Whether questions without an answer are left out.

    Returns:
        The questions, in the order of the source.

    Raises:
        OSError: It cannot be read or prepared.
        ValueError: It is not SQuAD's; names the source and where in it.
    """
    name = os.fspath(source)
    if name.startswith(PREFIX):
        records = _tfds_records(name, tfds_data_dir)
    else:
        records = _json_records(pathlib.Path(source))
    questions, counts = [], collections.Counter()
    for where, record in records:
        if answered and record.get("is_impossible", False):
            counts["impossible questions, left out"] += 1
            continue
        context = beir.text(record, "context", where)
        answers = []
        given = (
            _list(record, "answers", where)
            if (answered or "answers" in record)
            else []
        )
        for number, answer in enumerate(given):
            answers.append(
                _located(answer, context, f"{where}.answers[{number}]", counts)
            )
        if answered and not answers:
            counts["questions without an answer, left out"] += 1
            continue
        questions.append(
            Question(
                record["id"],
                record["question"].strip(),
                context,
                tuple(answers),
            )
        )
    if say is not None:
        for kind, count in sorted(counts.items()):
            say(f"{name}: {count} {kind}")
    return questions


def _located(record, context, where, counts):
    """Returns the `Answer`, where its text stands in the context."""
    start = _get(record, "answer_start", where)
    if isinstance(start, bool) or not isinstance(start, int):
        raise ValueError(
            f"{where}: 'answer_start' must be an integer. Received: {start!r}"
        )
    text = beir.text(record, "text", where)
    if text and start >= 0 and context.startswith(text, start):
        return Answer(text, start)
    first = context.find(text) if text else -1
    if first < 0 or first != context.rfind(text):
        counts["answers whose place is not known"] += 1
        return Answer(text, None)
    counts["answers that stand elsewhere, found there"] += 1
    return Answer(text, first)


def _json_records(path) -> Iterator[tuple[str, dict]]:
    """Yields where a question is, and the question with its context."""
    seen: dict[str, None] = {}
    for where, _, paragraph in _paragraphs(path):
        context = beir.text(paragraph, "context", where)
        for place, question in _questions(paragraph, where, seen):
            seen[question["id"]] = None
            yield place, {"answers": [], **question, "context": context}


def _tfds_records(source, data_dir) -> Iterator[tuple[str, dict]]:
    """Yields the same of a TensorFlow dataset with SQuAD's features."""
    import tensorflow_datasets as tfds

    builder, split = open_dataset(source, "source", data_dir)
    examples = tfds.as_numpy(builder.as_dataset(split=split))
    for number, example in enumerate(examples):
        where = f"{source}[{number}]"
        missing = {"id", "question", "context", "answers"} - example.keys()
        if missing:
            raise ValueError(
                f"{where}: must have SQuAD's features. It lacks: "
                f"{', '.join(sorted(missing))}"
            )
        answers = example["answers"]
        yield (
            where,
            {
                "answers": [
                    {"text": text.decode(), "answer_start": int(start)}
                    for text, start in zip(
                        answers["text"], answers["answer_start"], strict=True
                    )
                ],
                "is_impossible": bool(example.get("is_impossible", False)),
                **{
                    key: example[key].decode()
                    for key in ("id", "question", "context")
                },
            },
        )


def _paragraphs(path):
    """Yields where a paragraph is, its name, and the paragraph."""
    try:
        articles = json.loads(path.read_bytes())["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} must hold SQuAD's JSON, an object with a list `data`. "
            f"Received: {error}"
        ) from error
    for i, article in enumerate(_list({"data": articles}, "data", path)):
        where = f"{path}: data[{i}]"
        for j, paragraph in enumerate(_list(article, "paragraphs", where)):
            yield f"{where}.paragraphs[{j}]", f"{i}.{j}", paragraph


def _questions(paragraph, where, seen):
    """Yields where a question is, and the question, with an id not in `seen`.

    What is yielded is to be put there before the next.
    """
    for number, question in enumerate(_list(paragraph, "qas", where)):
        place = f"{where}.qas[{number}]"
        key = beir.identifier(_get(question, "id", place), "id", place)
        if key in seen:
            raise ValueError(
                f"{place}: the id {key!r} was there before; ids must be unique."
            )
        beir.text(question, "question", place)
        yield place, question


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
