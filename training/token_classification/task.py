"""Token classification: labelled words, their batches, task and prediction.

Shape letters: M windows of this replica, N windows, T tokens, C classes.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import seqeval.metrics
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTokenClassifier,
    FixedHeadTokenClassifierPreprocessor,
)
from keras_fixedhead.files import replaced
from keras_fixedhead.token_classifier import WordWindow
from training.engine.global_batch import ExampleBatches, gatherer, of_length
from training.engine.preset import read_task
from training.engine.task import (
    FinetuningTask,
    in_order,
    losses_and_hits,
    mean_share,
    outputs_of_all,
)
from training.token_classification.configs import Prediction, TokenLabelsConfig

# Stands for the label of a word without tokens, which the model does not see.
OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences: the words of each, and their labels, or `None` without."""

    words: list[list[str]]
    labels: list[list[str]] | None

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
            for row, expected in zip(found, self.labels or [], strict=True)
            for label, wanted in zip(row, expected, strict=True)
        ]
        figures = {"accuracy": float(np.mean(right))}
        if {name[:2] for name in self.names} <= {OUTSIDE, "B-", "I-"}:
            figures["f1"] = float(
                seqeval.metrics.f1_score(self.labels, found, zero_division=0)
            )
        return figures


def read_sentences(
    source: str | os.PathLike, column: int | None = None, labelled: bool = True
) -> Sentences:
    """Reads a file with a word per line and an empty line after a sentence.

    Files that end in .conllu are CoNLL-U's. In others the first column is the
    word, and tabs, or else spaces, divide the columns.
    """
    path = pathlib.Path(source)
    universal = path.suffix == ".conllu"
    word_column = 1 if universal else 0
    if not labelled:
        column = word_column
    elif column is None:
        column = 3 if universal else -1  # CoNLL-U's universal part of speech
    elif column <= word_column:
        raise ValueError(
            f"`column` must be over {word_column}, the column of the words. "
            f"Received: {column}"
        )
    sentences: list[list[tuple[str, str]]] = []
    sentence: list[tuple[str, str]] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8: {error}") from error
    for number, line in enumerate(lines, start=1):
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
                f"{source}:{number}: must have a word and a label. "
                f"Received: {line!r}"
            )
        else:
            sentence.append((values[word_column], values[column]))
    kept = [sentence for sentence in [*sentences, sentence] if sentence]
    if not kept:
        raise ValueError(f"{source} must have a word. Received: none")
    words, labels = zip(*(map(list, zip(*sentence)) for sentence in kept))
    return Sentences(list(words), list(labels) if labelled else None)


class LabelledWindows:
    """The windows of sentences, with a number for each token.

    It is 1 + the class of a word's first token, and 0, which the loss leaves
    out, at all other tokens and for a label that is not among `names`.
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
        number_of = {name: number for number, name in enumerate(names, 1)}
        labels = itertools.chain.from_iterable(sentences.labels or [])
        self.numbers = [[0] * len(row.token_ids) for row in self.rows]
        for row, numbers in zip(self.rows, self.numbers):
            for place, label in zip(row.places, labels):
                if place >= 0:
                    numbers[place] = number_of.get(label, 0)

    def __len__(self):
        return len(self.rows)

    def labels_of(self, classes: np.ndarray) -> list[list[str]]:
        """Returns words' labels by sentence; takes classes, int `[N, T]`."""
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
    """Batches of the model's inputs and `numbers`, int32 `[M, T]` each."""

    def reader(self, examples: LabelledWindows) -> Callable:
        pad = self.preprocessor.tokenizer.pad_token_id
        token_ids = gatherer([row.token_ids for row in examples.rows], pad)
        numbers = gatherer(examples.numbers)

        def read(indices):
            ids, real = token_ids(indices)
            batch = {
                "token_ids": ids,
                "padding_mask": real,
                "segment_ids": tf.zeros_like(real),
                "numbers": numbers(indices)[0],
            }
            if self.packed:
                return batch
            return of_length(batch, self.preprocessor.sequence_length, pad)

        return read


class TokenClassificationTask(FinetuningTask):
    """Fine-tuning on the first token of each word (Devlin et al. 2018, 5.3)."""

    part = "tokens"
    sources = ("validation", "vocabulary")
    batches = TokenBatches
    metrics = ("accuracy",)
    counts = (*FinetuningTask.counts, "words")
    model: FixedHeadTokenClassifier

    def __init__(self, config: TokenLabelsConfig):
        super().__init__(config)
        options = self._options
        self._check_lengths(2, sequence_length=options.sequence_length)
        self._preprocessor = FixedHeadTokenClassifierPreprocessor(
            self._read_tokenizer(), sequence_length=options.sequence_length
        )
        data = config.run.data
        sentences = read_sentences(data, options.column)
        if len(sentences.names) < 2:
            raise ValueError(
                f"`data` {str(data)!r} must have at least two labels. "
                f"Received: {', '.join(sentences.names)}"
            )
        self._names = sentences.names
        self._sentences = sentences
        self._held_out = read_sentences(options.validation, options.column)
        self._training, self._validation = (
            LabelledWindows(part, self._preprocessor, self._names)
            for part in (sentences, self._held_out)
        )
        if unknown := sorted({*self._held_out.names} - {*self._names}):
            self.warnings = [
                "validation has labels that the training data has not, which "
                f"count as wrong: {', '.join(unknown)}"
            ]

    @property
    def data_sha256(self) -> dict[str, str]:
        return self._digests(
            {"training": self._sentences, "validation": self._held_out}
        )

    @property
    def settings(self) -> dict:
        return {**super().settings, "labels": self._names}

    def build(self) -> None:
        self.model = FixedHeadTokenClassifier(
            self._make_encoder(),
            num_classes=len(self._names),
            preprocessor=self._preprocessor,
            dropout=self._options.head_dropout,
            labels=self._names,
        )

    def totals(self, batch: dict) -> dict[str, tf.Tensor]:
        words = tf.math.count_nonzero(batch["numbers"] > 0, dtype=tf.float32)
        return {**super().totals(batch), "words": words}

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        logits = self.compute(self.model.classify_packed, batch, training=True)
        numbers = batch["numbers"]
        losses, hits = losses_and_hits(logits, tf.maximum(numbers - 1, 0))
        # Tokens that are not the first of a word do not count.
        counted = tf.cast(numbers > 0, losses.dtype)
        words = totals["words"]
        return mean_share(losses * counted, words), {
            "accuracy": mean_share(hits * counted, words)
        }

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        logits = self.compute(self.model.classify_packed, batch)
        classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
        # All batches need one length to be concatenated.
        missing = self._preprocessor.sequence_length - tf.shape(classes)[1]
        return {
            "index": batch["index"],
            "classes": tf.pad(classes, [[0, 0], [0, missing]]),
        }

    def figures(self, outputs: dict) -> dict[str, float]:
        classes = in_order(outputs)["classes"]
        return self._held_out.score(self._validation.labels_of(classes))


def predict(config: Prediction) -> dict[str, float]:
    """Writes words with their labels, and returns their `score`."""
    classifier = read_task(config.model, "model", FixedHeadTokenClassifier)
    labelled = not config.unlabelled
    sentences = read_sentences(config.input, config.column, labelled)
    names = classifier.labels or [
        str(number) for number in range(classifier.num_classes)
    ]
    windows = LabelledWindows(sentences, classifier.preprocessor, names)

    def classify(inputs):
        logits = classifier.classify_packed(inputs)
        return {"classes": tf.argmax(logits, -1, output_type=tf.int32)}

    outputs = outputs_of_all(
        classify,
        lambda numbers: classifier.preprocessor.pad(
            [windows.rows[number] for number in numbers]
        ),
        [len(row.token_ids) for row in windows.rows],
        config.batch_size,
        "labelling",
    )
    found = windows.labels_of(outputs["classes"])
    with replaced(config.output) as partial:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            for words, labels in zip(sentences.words, found):
                pairs = zip(words, labels, strict=True)
                file.writelines(f"{word}\t{label}\n" for word, label in pairs)
                file.write("\n")
    return sentences.score(found) if labelled else {}
