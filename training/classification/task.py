"""The classification task: texts, or pairs of texts, and their labels.

Shape letters: M examples of this replica, T sequence length, N examples of
all evaluations, C classes.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import re

import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadTextClassifier,
    FixedHeadTextClassifierPreprocessor,
)
from keras_fixedhead.planner import encoder_flops
from training.classification.batches import LabelledBatches
from training.classification.configs import ClassifyConfig
from training.corpus.datasets import PREFIX, parse_name
from training.corpus.labelled import Labelled, read_examples
from training.engine.encoder import (
    check_vocabulary,
    copy_encoder,
    make_encoder,
    read_start,
    read_tokenizer,
)
from training.engine.preset import preset_sha256, read_pooling
from training.engine.sequences import SequenceTask, in_order, losses_and_hits

# In the preset: how often which class was taken for which.
CONFUSION = "confusion.json"


class ClassificationTask(SequenceTask):
    """Fine-tuning as of BERT (Devlin et al. 2018, section 4.1).

    Reads labelled texts, and `vocabulary` where there is no preset to start
    from.

    Args:
        config: The run.

    Raises:
        OSError: A file is missing.
        ValueError: A line of it, or a value of the configuration, is wrong.
    """

    metrics = ("accuracy",)

    def __init__(self, config: ClassifyConfig):
        self._config = config
        classification = config.classification
        self._start, self._model = read_start(config.model)
        check_vocabulary(classification.vocabulary, config.model.init)
        longest = self._model.max_sequence_length
        # Three tokens are special.
        if not 3 < classification.sequence_length <= longest:
            raise ValueError(
                "`sequence_length` must be over 3 (the special tokens) and at "
                f"most max_sequence_length={longest}. "
                f"Received: {classification.sequence_length}"
            )
        if not 0.0 <= classification.head_dropout < 1.0:
            raise ValueError(
                "`head_dropout` must be from 0 to below 1. "
                f"Received: {classification.head_dropout}"
            )
        tokenizer = read_tokenizer(
            self._start, classification.vocabulary, classification.lowercase
        )
        self._training = read_examples(
            config.run.data,
            classification.columns,
            classification.labels,
        )
        if len(self._training.names) < 2:
            raise ValueError(
                f"`data` {str(config.run.data)!r} must have at least two "
                f"classes. Received: {', '.join(self._training.names)}"
            )
        self._parts = self._read_validation()
        self._validation = _joined(self._parts.values())
        self._batches = LabelledBatches(
            config.training.global_batch_size,
            FixedHeadTextClassifierPreprocessor(
                tokenizer, sequence_length=classification.sequence_length
            ),
            config.training.seed,
            packed=config.run.packed,
        )
        self._confusion = {}

    def _read_validation(self) -> dict[str, Labelled]:
        """The held-out examples of each source, by its name."""
        classification = self._config.classification
        if not classification.validation:
            raise ValueError(
                "`validation` must name at least one held-out source. "
                "Received: none"
            )
        parts = {}
        for source in classification.validation:
            name = source_name(source)
            if name in parts:
                raise ValueError(
                    "`validation` must be sources of different names, which "
                    f"their figures take. Received {name!r} twice: "
                    f"{' '.join(classification.validation)}"
                )
            part = read_examples(
                source, classification.columns, classification.labels
            ).renumbered(self._training.names, source)
            if (part.second is None) != (self._training.second is None):
                raise ValueError(
                    f"`validation` {source} must be of "
                    f"{_kind(self._training)}, as the training data. "
                    f"Received: {_kind(part)}"
                )
            parts[name] = part
        return parts

    @property
    def settings(self):
        config = self._config
        model = dataclasses.asdict(config.model)
        init = model.pop("init")
        classification = dataclasses.asdict(config.classification)
        # What they are read from may move; what is in them counts.
        for name in ("validation", "vocabulary", "columns", "labels"):
            del classification[name]
        data = {"training": self._training, **self._parts}
        digests = {name: part.sha256 for name, part in data.items()}
        vocabulary = config.classification.vocabulary
        if vocabulary is not None:
            digests["vocabulary"] = hashlib.sha256(
                vocabulary.read_bytes()
            ).hexdigest()
        return {
            "model": model,
            "init_sha256": init and preset_sha256(init, "init"),
            "classification": classification,
            "labels": list(self._training.names),
            "data_sha256": digests,
        }

    @property
    def warnings(self):
        sources = {"the training data": self._training, **self._parts}
        return [
            f"{count:,} examples of {source} left out: {reason}"
            for source, part in sources.items()
            for reason, count in part.left_out.items()
        ]

    def build(self):
        classification = self._config.classification
        preprocessor = self._batches.preprocessor
        pooling_mode = classification.pooling_mode
        if self._start is None:
            backbone = make_encoder(
                self._model, preprocessor.tokenizer.vocabulary_size()
            )
            pooling_mode = pooling_mode or "mean"
        else:
            start = self._start.backbone
            pooling_mode = (
                pooling_mode
                or read_pooling(self._model.init)
                or ("cls" if start.pooler else "mean")
            )
            backbone = copy_encoder(
                start,
                self._model,
                pooler=start.pooler and pooling_mode == "cls",
            )
        self.model = FixedHeadTextClassifier(
            backbone,
            num_classes=len(self._training.names),
            preprocessor=preprocessor,
            pooling_mode=pooling_mode,
            dropout=classification.head_dropout,
            labels=self._training.names,
        )

    def training_dataset(self, context, first_step):
        return self._batches.training(self._training, context, first_step)

    def loss(self, batch, totals):
        losses, hits = losses_and_hits(
            self._logits(batch, training=True), batch["labels"]
        )
        examples = tf.cast(totals["examples"], losses.dtype)
        return tf.reduce_sum(losses) / examples, {
            "accuracy": tf.reduce_sum(hits) / examples
        }

    def _logits(self, batch, training):
        """Float tensor `[M, C]`."""
        return self.model.classify_packed(
            self.model_inputs(batch),
            training=training,
            fixed_size=not self._config.run.packed,
        )

    def flops(self, totals):
        backbone = self.model.backbone
        tokens, examples = totals["tokens"], totals["examples"]
        # Of sequences as long as they are on average, which attend to
        # themselves; the head is nothing beside it.
        of_a_token = encoder_flops(
            backbone,
            tokens / examples,
            examples / tokens if self.model.pooling_mode == "cls" else 1,
        )
        return 3 * tokens * of_a_token

    def evaluation_dataset(self, context):
        return self._batches.evaluation(self._validation, context)

    def evaluation_step(self, batch):
        logits = self._logits(batch, training=False)
        losses, _ = losses_and_hits(logits, batch["labels"])
        return {
            "index": batch["index"],
            "class": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "loss": losses,
        }

    def figures(self, outputs):
        """`accuracy_NAME` and `heldout_loss_NAME` of each held-out source."""
        outputs = in_order(outputs)
        classes, losses = outputs["class"], outputs["loss"]
        figures, start = {}, 0
        for name, part in self._parts.items():
            mine = slice(start, start := start + len(part))
            counts = confusion_counts(
                part.labels, classes[mine], len(part.names)
            )
            self._confusion[name] = counts.tolist()
            figures[f"accuracy_{name}"] = float(counts.trace() / len(part))
            figures[f"heldout_loss_{name}"] = float(losses[mine].mean())
        return figures

    def save(self, folder: pathlib.Path):
        self.model.save_to_preset(str(folder))
        confusion = {
            "labels": list(self._training.names),
            # Rows are the true classes, columns what they were taken for.
            "counts": self._confusion,
        }
        (folder / CONFUSION).write_text(
            json.dumps(confusion, indent=2) + "\n", encoding="utf-8"
        )


def confusion_counts(labels, classes, num_classes) -> np.ndarray:
    """How often which class was taken for which.

    Args:
        labels: Integer array `[N]`, the true classes.
        classes: Integer array `[N]`, what they were taken for.
        num_classes: Integer, C.

    Returns:
        Integer array `[C, C]`, a row for each true class.
    """
    places = np.asarray(labels, np.int64) * num_classes + classes
    return np.bincount(places, minlength=num_classes**2).reshape(
        [num_classes, num_classes]
    )


def source_name(source: str) -> str:
    """What the figures of a source are named after: its file or its split."""
    if source.startswith(PREFIX):
        dataset, split = parse_name(source, "validation")
        name = split or dataset
    else:
        name = pathlib.Path(source).stem
    return re.sub(r"\W+", "_", name).strip("_")


def _kind(examples):
    return "single texts" if examples.second is None else "pairs of texts"


def _joined(parts):
    """All examples of several sources, one after the other."""
    parts = list(parts)
    return Labelled(
        first=[text for part in parts for text in part.first],
        second=None
        if parts[0].second is None
        else [text for part in parts for text in part.second],
        labels=np.concatenate([part.labels for part in parts]),
        names=parts[0].names,
        left_out=sum((part.left_out for part in parts), collections.Counter()),
    )
