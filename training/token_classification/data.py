"""Sentences with labelled words: CoNLL's and CoNLL-U's files, and batches.

Shape letters: M windows of one replica, T tokens.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import seqeval.metrics
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenClassifierPreprocessor
from keras_fixedhead.token_classifier import WordWindow
from training.corpus.texts import of_length
from training.engine.global_batch import ExampleBatches

_UNIVERSAL_PART_OF_SPEECH = 3
# Stands for the label of a word without tokens, which the model does not see.
OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences: the words of each, and their labels, or `None` without."""

    words: list[list[str]]
    labels: list[list[str]] | None

    def __len__(self):
        return len(self.words)

    @property
    def sha256(self) -> str:
        """The checksum of words and labels."""
        content = json.dumps([self.words, self.labels])
        return hashlib.sha256(content.encode()).hexdigest()

    @functools.cached_property
    def names(self) -> list[str]:
        """The different labels, sorted."""
        return sorted(set(itertools.chain.from_iterable(self.labels or [])))

    def score(self, found: Sequence[Sequence[str]]) -> dict[str, float]:
        """Returns `accuracy`, the fraction of words with the right label.

        If the labels are of entities (`B-person`, `I-person`, `O`), also the
        `f1` of whole entities, by the rules of CoNLL-2000's `conlleval`.
        """
        right = [
            label == wanted
            for row, expected in zip(found, self.labels, strict=True)
            for label, wanted in zip(row, expected, strict=True)
        ]
        figures = {"accuracy": float(np.mean(right))}
        if all(
            name == OUTSIDE or name[:2] in ("B-", "I-") for name in self.names
        ):
            figures["f1"] = float(
                seqeval.metrics.f1_score(self.labels, found, zero_division=0)
            )
        return figures


def read_sentences(
    source: str | os.PathLike, column: int | None = None, labelled: bool = True
) -> Sentences:
    """Reads a file with a word per line and an empty line after a sentence.

    Files that end in .conllu are CoNLL-U's. In others the first column is the
    word, and tabs, or else spaces, divide the columns. `column` is that of the
    labels, from 0; by default the last one, in CoNLL-U the part of speech.
    """
    path = pathlib.Path(source)
    universal = path.suffix == ".conllu"
    word_column = 1 if universal else 0
    if column is None:
        column = _UNIVERSAL_PART_OF_SPEECH if universal else -1
    elif labelled and column <= word_column:
        raise ValueError(
            f"`column` must be over {word_column}, the column of the words. "
            f"Received: {column}"
        )
    sentences, sentence = [], []
    for where, line in _lines(path):
        values = line.split("\t" if "\t" in line else None)
        if not line.strip() or values[0] == "-DOCSTART-":
            sentences.append(sentence)
            sentence = []
        elif universal and (line.startswith("#") or not values[0].isdecimal()):
            # A comment, words that are written as one, or an omitted word.
            continue
        elif len(values) <= max(word_column + labelled, column) or not (
            values[word_column] and values[column]
        ):
            raise ValueError(
                f"{where}: must have a word and a label. Received: {line!r}"
            )
        else:
            sentence.append((values[word_column], values[column]))
    kept = [sentence for sentence in [*sentences, sentence] if sentence]
    if not kept:
        raise ValueError(f"{source} must have a word. Received: none")
    words, labels = zip(*(map(list, zip(*sentence)) for sentence in kept))
    return Sentences(list(words), list(labels) if labelled else None)


def _lines(path) -> Iterator[tuple[str, str]]:
    """Yields ("file:line", line)."""
    try:
        # Other kinds of line feeds may be in a word.
        with open(path, encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                yield f"{path}:{number}", line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error


class LabelledWindows:
    """The windows of sentences, with the class of each token.

    `names` are the labels by class. The class is -1, which the loss leaves
    out, at all tokens but the first of each word, and at a label that is not
    among the names.
    """

    def __init__(
        self,
        sentences: Sentences,
        preprocessor: FixedHeadTokenClassifierPreprocessor,
        names: Sequence[str],
    ):
        self._names = names
        self._by_sentence = [
            preprocessor.windows(words) for words in sentences.words
        ]
        self.rows: list[WordWindow] = list(
            itertools.chain.from_iterable(self._by_sentence)
        )
        numbers = {name: number for number, name in enumerate(names)}
        labels = itertools.chain.from_iterable(sentences.labels or [])
        self.classes = [[-1] * len(row.token_ids) for row in self.rows]
        for row, classes in zip(self.rows, self.classes):
            for place, label in zip(row.places, labels):
                if place >= 0:
                    classes[place] = numbers.get(label, -1)

    def __len__(self):
        return len(self.rows)

    def labels_of(self, classes: np.ndarray) -> list[list[str]]:
        """Returns the label of each word of each sentence.

        Takes the classes of all windows' tokens, int `[N, T]`.
        """
        rows = iter(classes)
        return [
            [
                OUTSIDE if place < 0 else self._names[row[place]]
                for window, row in zip(windows, rows)
                for place in window.places
            ]
            for windows in self._by_sentence
        ]


class TokenBatches(ExampleBatches):
    """Batches of windows: the model's inputs and `classes`, int32 `[M, T]`."""

    def reader(self, examples: LabelledWindows) -> Callable:
        lengths = [len(row.token_ids) for row in examples.rows]

        def ragged(rows):
            flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
            return tf.RaggedTensor.from_row_lengths(flat, lengths)

        token_ids = ragged(row.token_ids for row in examples.rows)
        classes = ragged(examples.classes)
        length = self.preprocessor.sequence_length
        pad = self.preprocessor.tokenizer.pad_token_id

        def read(indices):
            ids = tf.gather(token_ids, indices)
            real = tf.ones_like(ids).to_tensor()
            batch = {
                "token_ids": ids.to_tensor(pad),
                "padding_mask": real,
                "segment_ids": tf.zeros_like(real),
            }
            wanted = tf.gather(classes, indices)
            if self.packed:
                return {**batch, "classes": wanted.to_tensor(-1)}
            batch = of_length(batch, length, pad)
            shape = [None, length]
            return {**batch, "classes": wanted.to_tensor(-1, shape=shape)}

        return read
