"""Token classification: a label for each word of a sentence.

Shape letters: M windows of this replica, T tokens, C classes.
"""

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTokenClassifier,
    FixedHeadTokenClassifierPreprocessor,
)
from keras_fixedhead.files import replaced
from training.engine.finetuning_task import FinetuningTask
from training.engine.prediction_config import PredictConfig
from training.engine.preset import read_task
from training.engine.sequences import (
    in_order,
    losses_and_hits,
    outputs_by_length,
)
from training.token_classification.configs import TokenLabelsConfig
from training.token_classification.data import (
    LabelledWindows,
    TokenBatches,
    read_sentences,
)


class TokenClassificationTask(FinetuningTask):
    """Fine-tuning on the first token of each word (Devlin et al. 2018, 5.3)."""

    part = "tokens"
    sources = ("validation", "vocabulary")
    batches = TokenBatches
    metrics = ("accuracy",)
    counts = (*FinetuningTask.counts, "words")

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

    @property
    def data_sha256(self):
        return {
            "training": self._sentences.sha256,
            "validation": self._held_out.sha256,
        }

    @property
    def settings(self):
        return {**super().settings, "labels": self._names}

    @property
    def warnings(self):
        unknown = sorted({*self._held_out.names} - {*self._names})
        if not unknown:
            return []
        return [
            "validation has labels that the training data has not, which "
            f"count as wrong: {', '.join(unknown)}"
        ]

    def build(self):
        self.model = FixedHeadTokenClassifier(
            self._make_encoder(),
            num_classes=len(self._names),
            preprocessor=self._preprocessor,
            dropout=self._options.head_dropout,
            labels=self._names,
        )

    def totals(self, batch):
        words = tf.math.count_nonzero(batch["classes"] >= 0, dtype=tf.float32)
        return {**super().totals(batch), "words": words}

    def loss(self, batch, totals):
        logits = self._logits(batch, training=True)
        classes = batch["classes"]
        losses, hits = losses_and_hits(logits, tf.maximum(classes, 0))
        # The share of each word in the mean; no other token counts.
        share = tf.cast(classes >= 0, losses.dtype) / tf.cast(
            totals["words"], losses.dtype
        )
        return tf.reduce_sum(losses * share), {
            "accuracy": tf.reduce_sum(hits * share)
        }

    def _logits(self, batch, training):
        """Returns a float tensor `[M, T, C]`."""
        return self.model.classify_packed(
            self.model_inputs(batch),
            training=training,
            fixed_size=not self.config.run.packed,
        )

    def evaluation_step(self, batch):
        classes = tf.argmax(
            self._logits(batch, training=False), axis=-1, output_type=tf.int32
        )
        # All batches need one length to be concatenated.
        missing = self._preprocessor.sequence_length - tf.shape(classes)[1]
        return {
            "index": batch["index"],
            "classes": tf.pad(classes, [[0, 0], [0, missing]]),
        }

    def figures(self, outputs):
        classes = in_order(outputs)["classes"]
        return self._held_out.score(self._validation.labels_of(classes))


def predict(config: PredictConfig) -> dict[str, float]:
    """Writes a word and its label per line, divided by a tab.

    An empty line follows each sentence. Returns `accuracy` and, for entities,
    `f1`; nothing if the input has no labels.
    """
    classifier = read_task(config.model, "model", FixedHeadTokenClassifier)
    sentences = read_sentences(
        config.input, config.column, not config.unlabelled
    )
    names = classifier.labels or [
        str(number) for number in range(classifier.num_classes)
    ]
    windows = LabelledWindows(sentences, classifier.preprocessor, names)
    found = windows.labels_of(
        _classes(classifier, windows.rows, config.batch_size)
    )
    with replaced(config.output) as partial:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            for words, labels in zip(sentences.words, found):
                pairs = zip(words, labels, strict=True)
                file.writelines(f"{word}\t{label}\n" for word, label in pairs)
                file.write("\n")
    return {} if config.unlabelled else sentences.score(found)


def _classes(classifier, rows, batch_size):
    """Returns the classes of all tokens, int32 `[windows, tokens]`."""
    classify = tf.function(
        lambda inputs: tf.argmax(
            classifier.classify_packed(inputs), axis=-1, output_type=tf.int32
        ),
        reduce_retracing=True,
        autograph=False,
    )
    lengths = [len(row.token_ids) for row in rows]
    found = np.zeros((len(rows), max(lengths)), np.int32)

    def compute(numbers):
        inputs = classifier.preprocessor.pad([rows[n] for n in numbers])
        return {
            "classes": classify(
                {name: tf.constant(x) for name, x in inputs.items()}
            )
        }

    for numbers, outputs in outputs_by_length(
        lengths, compute, batch_size, "labelling"
    ):
        classes = outputs["classes"]
        found[numbers, : classes.shape[1]] = classes
    return found
