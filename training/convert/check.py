"""Compares the outputs of a model with those of its source, on text.

Shape letters: B batch, T sequence length, D embedding size, V vocabulary size.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert import BertSource
from keras_fixedhead.convert.bert_source import PROJECTION
from keras_fixedhead.growth import backbone_of, input_batches
from keras_fixedhead.progress import progress
from training.convert import reference_encoders

TOLERANCE = 1e-5

_BATCH_SIZE = 16


def outputs_of(model: keras.Model, inputs: dict) -> dict[str, np.ndarray]:
    """Runs a model: `BertSource.encode`'s outputs, and `embedding` `[B, D]`."""
    outputs = dict(getattr(model, "backbone", model)(inputs))
    if isinstance(model, FixedHeadTextEmbedder):
        outputs["embedding"] = model(inputs)
    elif isinstance(model, FixedHeadMaskedLM):
        _, everywhere = np.indices(inputs["token_ids"].shape, "int32")
        logits = model({**inputs, "mask_positions": everywhere})
        outputs |= logits if model.next_sentence else {"masked_lm": logits}
    return {name: keras.ops.convert_to_numpy(x) for name, x in outputs.items()}


def inputs_of(
    texts: Sequence[str],
    model: keras.Model,
    tokenizer: FixedHeadTokenizer | None,
) -> dict[str, np.ndarray]:
    """B texts as inputs of an encoder, int arrays `[B, T]`.

    In every other text the second half is of the second segment. Without a
    `FixedHeadTokenizer`, ids are random.
    """
    backbone = backbone_of(model)
    longest = backbone.max_sequence_length
    preprocessor = getattr(model, "preprocessor", None)
    length = getattr(preprocessor, "sequence_length", longest)
    if tokenizer is None:
        shape = len(texts), min(length, 64)
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, shape[1] + 1, (len(texts), 1))
        token_ids = rng.integers(0, backbone.vocabulary_size, shape)
        inputs = {
            "token_ids": token_ids.astype("int32"),
            "padding_mask": (np.arange(shape[1]) < lengths).astype("int32"),
        }
    else:
        preprocessor = FixedHeadTextEmbedderPreprocessor(tokenizer, length)
        features = preprocessor.pad_to_longest(tf.constant(list(texts)))
        inputs = {name: np.array(x) for name, x in features.items()}
        lengths = inputs["padding_mask"].sum(axis=1, keepdims=True)
    places = np.arange(inputs["token_ids"].shape[1])
    second = (places >= lengths // 2) & (backbone.num_segments > 1)
    second[::2] = False
    inputs["segment_ids"] = second * inputs["padding_mask"]
    return inputs


@dataclasses.dataclass
class Agreement:
    """The largest differences between the outputs of two models.

    `differences` and `largest` hold the largest absolute difference and the
    largest absolute value of each output.
    """

    computed_by: str
    texts: int = 0
    tokens: int = 0
    differences: dict[str, float] = dataclasses.field(default_factory=dict)
    largest: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, inputs: dict, theirs: dict, ours: dict) -> None:
        """Adds the outputs of a batch."""
        real = inputs["padding_mask"].astype(bool)
        self.texts += len(real)
        self.tokens += int(real.sum())
        for name, mine in ours.items():
            other = keras.ops.convert_to_numpy(theirs[name])
            if mine.shape[:2] == real.shape and mine.ndim == 3:
                mine, other = mine[real], other[real]
            for metrics, x in (
                (self.differences, other - mine),
                (self.largest, other),
            ):
                # NumPy's maximum keeps NaN; Python's does not.
                metrics[name] = float(
                    np.maximum(metrics.get(name, 0.0), np.abs(x).max(initial=0))
                )

    def require(self, what: str) -> None:
        """Raises ValueError if an output differs by more than is allowed."""
        for name, difference in self.differences.items():
            # Not >, which is false for NaN.
            if not difference <= TOLERANCE * max(1.0, self.largest[name]):
                raise ValueError(
                    f"{what}: {name} is {difference:.1e} from that of "
                    f"{self.computed_by}, whose largest value is "
                    f"{self.largest[name]:.2g}; at most {TOLERANCE:.0e} of "
                    "that is allowed. Nothing was written"
                )

    def __str__(self):
        differences = ", ".join(
            f"{name} {difference:.1e} (of up to {self.largest[name]:.2g})"
            for name, difference in self.differences.items()
        )
        return (
            f"largest difference from {self.computed_by}, {self.texts} texts, "
            f"{self.tokens:,} tokens: {differences}"
        )


def compare(
    other: BertSource | keras.Model, model: keras.Model, inputs: dict
) -> Agreement:
    """Runs a model and its source, or another model of its class.

    `inputs` are an encoder's, int arrays `[B, T]`. A source that is a live
    model runs itself. Hugging Face's models run with `transformers` if it is
    installed. The rest run BERT's forward pass in NumPy, in float64.
    """
    batches = _batches(inputs)
    heads = isinstance(model, FixedHeadMaskedLM)
    encoded: Iterable[dict]
    tensors = other.tensors if isinstance(other, BertSource) else {}
    matrix = tensors.get(PROJECTION)
    if not isinstance(other, BertSource):
        computed_by = "the model before"
        encoded = (outputs_of(other, batch) for batch in batches)
    elif other.encode is not None:
        computed_by, encoded = other.origin, map(other.encode, batches)
    elif (
        pathlib.Path(other.origin, "config.json").exists()
        and reference_encoders.has_transformers()
    ):
        computed_by = "transformers"
        encoded = reference_encoders.encode_by_transformers(
            other.origin, batches, heads
        )
    else:
        computed_by = "BERT's forward pass in NumPy, float64"
        encoded = (
            reference_encoders.encode_by_numpy(other, batch, heads)
            for batch in batches
        )
    agreement = Agreement(computed_by)
    texts = sum(len(batch["token_ids"]) for batch in batches)
    print(
        f"comparing outputs on {texts} texts with {computed_by}",
        file=sys.stderr,
    )
    with progress("Comparing outputs", texts) as advance:
        for batch, theirs in zip(batches, encoded):
            ours = outputs_of(model, batch)
            if "embedding" in ours.keys() - theirs.keys():
                embedding = _embedding(theirs, batch, model, matrix)
                theirs = {**theirs, "embedding": embedding}
            agreement.add(batch, theirs, ours)
            advance(len(batch["token_ids"]))
    return agreement


def _batches(inputs):
    """Splits inputs into batches that are as long as their longest text."""
    # Texts of similar length need little padding.
    order = np.argsort(inputs["padding_mask"].sum(axis=1), kind="stable")
    inputs = {name: x[order] for name, x in inputs.items()}
    batches = []
    for batch, real in input_batches(inputs, _BATCH_SIZE):
        longest = int(real.sum(axis=1).max())
        batches.append({name: x[:, :longest] for name, x in batch.items()})
    return batches


def _embedding(outputs, batch, embedder, matrix):
    """Turns tokens into embeddings without the library's code.

    Pools them to `[B, D]`, multiplies by a matrix, if any, and normalizes.
    """
    tokens = keras.ops.convert_to_numpy(outputs["sequence_output"])
    mask = batch["padding_mask"][..., None].astype(bool)
    if embedder.pooling_mode == "mean":
        pooled = (tokens * mask).sum(axis=1) / mask.sum(axis=1)
    elif embedder.pooling_mode == "max":
        pooled = np.where(mask, tokens, -np.inf).max(axis=1)
    else:
        pooled = tokens[:, 0]
    if matrix is not None:
        pooled = pooled @ matrix
    if embedder.normalize:
        pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled
