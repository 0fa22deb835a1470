"""Classification of texts, or pairs of texts: batches, task and prediction.

Shape letters: M examples of this replica, T tokens, C classes, N examples of
a file.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextClassifier,
    FixedHeadTextClassifierPreprocessor,
)
from keras_fixedhead.beir import write_records
from keras_fixedhead.files import replaced, write_json
from keras_fixedhead.planner import encoder_flops
from training.classification.configs import ClassifyConfig, Prediction
from training.corpus.datasets import source_name
from training.corpus.texts import Labelled, read_examples, read_rows
from training.engine.global_batch import ExampleBatches, of_length
from training.engine.preset import read_pooling, read_task
from training.engine.task import (
    FinetuningTask,
    in_order,
    losses_and_hits,
    mean_share,
    outputs_of_all,
)


class LabelledBatches(ExampleBatches):
    """Batches of the model's inputs, int32 `[M, T]`, and `labels`, `[M]`."""

    def reader(self, examples: Labelled) -> Callable:
        columns = list(map(tf.constant, examples.columns))
        labels = tf.constant(examples.labels)

        def batch(indices):
            features = self.preprocessor.pad_to_longest(
                *(tf.gather(texts, indices) for texts in columns)
            )
            if not self.packed:
                features = of_length(
                    features,
                    self.preprocessor.sequence_length,
                    self.preprocessor.tokenizer.pad_token_id,
                )
            return {**features, "labels": tf.gather(labels, indices)}

        return batch


class ClassificationTask(FinetuningTask):
    """Fine-tuning like BERT's (Devlin et al. 2018, section 4.1)."""

    part = "classification"
    sources = ("validation", "vocabulary", "columns", "labels")
    batches = LabelledBatches
    metrics = ("accuracy",)
    model: FixedHeadTextClassifier

    def __init__(self, config: ClassifyConfig):
        super().__init__(config)
        options = self._options
        self._check_lengths(3, sequence_length=options.sequence_length)
        self._preprocessor = FixedHeadTextClassifierPreprocessor(
            self._read_tokenizer(), sequence_length=options.sequence_length
        )
        data = config.run.data
        self._training = read_examples(data, options.columns, options.labels)
        if len(self._training.names) < 2:
            raise ValueError(
                f"`data` {str(data)!r} must have at least two classes. "
                f"Received: {', '.join(self._training.names)}"
            )
        self._parts = self._read_validation()
        parts = list(self._parts.values())
        self._validation = dataclasses.replace(
            parts[0],
            columns=[
                list(itertools.chain(*column))
                for column in zip(*(part.columns for part in parts))
            ],
            labels=np.concatenate([part.labels for part in parts]),
        )
        sources = {"the training data": self._training, **self._parts}
        self.warnings = [
            f"{part.left_out:,} examples of {source} left out: no label"
            for source, part in sources.items()
            if part.left_out
        ]
        # Of each source; rows are the true classes, columns the predicted.
        self._confusion: dict[str, list[list[int]]] = {}

    def _read_validation(self) -> dict[str, Labelled]:
        """Reads the held-out examples of each source, by its name."""
        options, training = self._options, self._training
        if not options.validation:
            raise ValueError(
                "`validation` must name at least one held-out source. "
                "Received: none"
            )
        parts: dict[str, Labelled] = {}
        for source in options.validation:
            name = source_name(source)
            if name in parts:
                raise ValueError(
                    "`validation` must be sources of different names, because "
                    f"metrics are named after them. Received {name!r} twice: "
                    f"{' '.join(options.validation)}"
                )
            parts[name] = part = read_examples(
                source, options.columns, training.names, bool(options.labels)
            )
            if len(part.columns) != len(training.columns):
                raise ValueError(
                    f"`validation` {source} must be of single texts if the "
                    "training data are, and of pairs if those are"
                )
        return parts

    @property
    def data_sha256(self) -> dict[str, str]:
        return self._digests({"training": self._training, **self._parts})

    @property
    def settings(self) -> dict:
        return {**super().settings, "labels": list(self._training.names)}

    def build(self) -> None:
        pooling_mode, pooler = self._options.pooling_mode, False
        if self._start is not None and self._model.init is not None:
            pooler = self._start.backbone.pooler
            pooling_mode = pooling_mode or read_pooling(self._model.init)
        pooling_mode = pooling_mode or ("cls" if pooler else "mean")
        self.model = FixedHeadTextClassifier(
            self._make_encoder(pooler=pooler and pooling_mode == "cls"),
            num_classes=len(self._training.names),
            preprocessor=self._preprocessor,
            pooling_mode=pooling_mode,
            dropout=self._options.head_dropout,
            labels=self._training.names,
        )

    def loss(self, batch: dict, totals: dict) -> tuple[tf.Tensor, dict]:
        logits = self.compute(self.model.classify_packed, batch, training=True)
        losses, hits = losses_and_hits(logits, batch["labels"])
        examples = totals["examples"]
        accuracy = mean_share(hits, examples)
        return mean_share(losses, examples), {"accuracy": accuracy}

    def flops(self, totals: dict[str, float]) -> float | None:
        if self.model.pooling_mode != "cls":
            return super().flops(totals)
        # The last block computes the first token of each example only.
        tokens, examples = totals["tokens"], totals["examples"]
        of_a_token = encoder_flops(
            self.model.backbone, tokens / examples, examples / tokens
        )
        return 3 * tokens * of_a_token

    def evaluation_step(self, batch: dict) -> dict[str, tf.Tensor]:
        logits = self.compute(self.model.classify_packed, batch)
        losses, _ = losses_and_hits(logits, batch["labels"])
        return {
            "index": batch["index"],
            "class": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "loss": losses,
        }

    def figures(self, outputs: dict) -> dict[str, float]:
        """Returns `accuracy_NAME` and `heldout_loss_NAME` of each source."""
        outputs = in_order(outputs)
        classes, losses = outputs["class"], outputs["loss"]
        figures, start = {}, 0
        for name, part in self._parts.items():
            mine = slice(start, start := start + len(part))
            counts = tf.math.confusion_matrix(
                part.labels, classes[mine], len(part.names)
            ).numpy()
            self._confusion[name] = counts.tolist()
            figures[f"accuracy_{name}"] = float(counts.trace() / len(part))
            figures[f"heldout_loss_{name}"] = float(losses[mine].mean())
        return figures

    def save(self, folder: pathlib.Path) -> None:
        """Writes the preset and, for people, `confusion.json`."""
        super().save(folder)
        names = list(self._training.names)
        confusion = {"labels": names, "counts": self._confusion}
        write_json(folder / "confusion.json", confusion)


def predict(config: Prediction) -> dict[str, float]:
    """Writes each example's label and probabilities.

    Returns `accuracy` and the number of `examples` that come with a label.
    """
    classifier = read_task(config.model, "model", FixedHeadTextClassifier)
    rows = list(read_rows(config.input, config.columns, not config.unlabelled))
    if not rows:
        raise ValueError(
            f"`input` {config.input!r} must have an example. Received: none"
        )
    names = classifier.labels or [
        str(number) for number in range(classifier.num_classes)
    ]

    def classify(inputs):
        logits = classifier.classify_packed(inputs)
        return {"probabilities": tf.nn.softmax(logits)}

    def inputs(numbers):
        columns = zip(*(rows[number].texts for number in numbers))
        return classifier.preprocessor.pad_to_longest(
            *(tf.constant(column) for column in columns)
        )

    lengths = [sum(map(len, row.texts)) for row in rows]
    outputs = outputs_of_all(
        classify, inputs, lengths, config.batch_size, "classifying"
    )
    probabilities = outputs["probabilities"]
    found = [names[number] for number in probabilities.argmax(axis=-1)]
    records = [
        {"label": label, "probabilities": dict(zip(names, numbers))}
        for label, numbers in zip(found, probabilities.tolist())
    ]
    with replaced(config.output) as partial:
        write_records(partial, records)
    right = [
        # Numbers may stand for names, as in training.
        row.label in (label, str(names.index(label)))
        for row, label in zip(rows, found)
        if row.label is not None
    ]
    if not right:
        return {}
    return {"accuracy": float(np.mean(right)), "examples": len(right)}
