"""A BERT as some format holds it, and the models that are made of it.

All formats hold the same tensors. Readers bring them under the names of BERT's
first checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`), dense
kernels as `[inputs, outputs]`; here they become weights, each exactly once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.masked_lm_preprocessor import FixedHeadMaskedLMPreprocessor
from keras_fixedhead.text_embedder import POOLING_MODES, FixedHeadTextEmbedder
from keras_fixedhead.text_embedder_preprocessor import (
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS, FixedHeadTokenizer

TASKS = ("text_embedder", "masked_lm", "backbone")

# Whether special tokens in texts become ids shows on these.
SPECIAL_TOKEN_TEXTS = tuple(
    f"a{space}{token}{space}b"
    for token in SPECIAL_TOKENS
    for space in (" ", "")
)

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"

_POOLER = "bert/pooler/dense"
_MASKED_LM = "cls/predictions"
_NEXT_SENTENCE = "cls/seq_relationship"

# What BERT calls the sublayers of a block.
_BLOCK = {
    "attention.query": "attention/self/query",
    "attention.key": "attention/self/key",
    "attention.value": "attention/self/value",
    "attention.attention_output": "attention/output/dense",
    "attention_layer_norm": "attention/output/LayerNorm",
    "intermediate_dense": "intermediate/dense",
    "output_dense": "output/dense",
    "output_layer_norm": "output/LayerNorm",
}

# What BERT calls the weights of `keras_hub.layers.MaskedLMHead`.
_MASKED_LM_HEAD = {
    "intermediate_dense/kernel": f"{_MASKED_LM}/transform/dense/kernel",
    "intermediate_dense/bias": f"{_MASKED_LM}/transform/dense/bias",
    "intermediate_layer_norm/gamma": f"{_MASKED_LM}/transform/LayerNorm/gamma",
    "intermediate_layer_norm/beta": f"{_MASKED_LM}/transform/LayerNorm/beta",
    "output_bias": f"{_MASKED_LM}/output_bias",
}

# What a model without the part that uses it may leave out.
_OPTIONAL = {
    *_MASKED_LM_HEAD.values(),
    *(
        f"{layer}/{weight}"
        for layer in (_POOLER, _NEXT_SENTENCE)
        for weight in ("kernel", "bias")
    ),
}


@dataclasses.dataclass(frozen=True)
class BertSource:
    """A BERT as it was found: its tensors and all that is known about it.

    What is `None` the source does not say.

    Attributes:
        origin: What it was read from, for messages.
        config: The arguments of its `FixedHeadBackbone`, but `pooler`.
        tensors: Float arrays by the name in BERT's first checkpoints, dense
            kernels as `[inputs, outputs]`. A tensor those do not have comes
            under any other name, and is an error.
        source_names: What the source calls these tensors, where it differs.
        spell: Maps the name of a tensor that the source lacks to what the
            source would call it.
        vocabulary: Its tokens, in the order of their ids.
        lowercase: Whether its tokenizer lower-cases (and strips accents).
        special_tokens_in_strings: Whether the tokenizer to build maps special
            tokens in texts, such as `[SEP]`, to their ids. See
            `FixedHeadTokenizer`.
        pooling_mode: How it pools: `"mean"`, `"cls"` or `"max"`.
        normalize: Whether its embeddings have length 1.
        sequence_length: The longest input it was made for, in tokens.
        prompts: Text put before each text, by the prompt's name.
        default_prompt: The name of the prompt it uses where none is asked
            for.
        encode: Runs the source itself: a dictionary of int arrays `[B, T]`
            (`token_ids`, `segment_ids`, `padding_mask`) to a dictionary with
            `sequence_output` `[B, T, D]` and, where it has them,
            `pooled_output` `[B, D]`, logits `masked_lm` `[B, T, V]` of every
            token and `next_sentence` `[B, 2]`.
        tokenize: The source's own tokenizer: a list of strings to lists of
            ids, without the special tokens around a text.
    """

    origin: str
    config: Mapping
    tensors: Mapping[str, np.ndarray]
    source_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    spell: Callable = str
    vocabulary: Sequence[str] | None = None
    lowercase: bool | None = None
    special_tokens_in_strings: bool = False
    pooling_mode: str | None = None
    normalize: bool | None = None
    sequence_length: int | None = None
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    encode: Callable | None = None
    tokenize: Callable | None = None

    def build(self, task="text_embedder"):
        """Makes a model of all that the task needs.

        Args:
            task: `"text_embedder"`, `"masked_lm"` (with next sentences where
                the source predicts them) or `"backbone"` (with a pooler where
                the source has one).

        Returns:
            A `FixedHeadTextEmbedder` or `FixedHeadMaskedLM` with its
            preprocessor, or a `FixedHeadBackbone`.

        Raises:
            ValueError: A tensor is missing, has the wrong shape or is not
                used; or the source does not say what the task needs.
        """
        if task not in TASKS:
            raise ValueError(
                f"`task` must be one of {TASKS}. Received: task={task!r}"
            )
        next_sentence = task == "masked_lm" and all(
            f"{layer}/kernel" in self.tensors
            for layer in (_POOLER, _NEXT_SENTENCE)
        )
        preprocessor = self._preprocessor(task)
        backbone = FixedHeadBackbone(
            **self.config,
            pooler=next_sentence
            or (task == "backbone" and f"{_POOLER}/kernel" in self.tensors),
        )
        if task == "text_embedder":
            model = FixedHeadTextEmbedder(
                backbone,
                preprocessor,
                pooling_mode=self.pooling_mode,
                normalize=True if self.normalize is None else self.normalize,
            )
        elif task == "masked_lm":
            model = FixedHeadMaskedLM(
                backbone, preprocessor, next_sentence=next_sentence
            )
        else:
            model = backbone
        self._assign(named_weights(model))
        return model

    def tokenizer(self):
        """The source's tokenizer, a `FixedHeadTokenizer`.

        Raises:
            ValueError: The source does not say, or its vocabulary does not
                fit.
        """
        for name in ("vocabulary", "lowercase"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{self.origin} does not say its `{name}`: pass it"
                )
        missing = [x for x in SPECIAL_TOKENS if x not in self.vocabulary]
        if missing:
            raise ValueError(
                f"The vocabulary of {self.origin} lacks {', '.join(missing)}, "
                "which a BERT needs"
            )
        rows = self.config["vocabulary_size"]
        if len(self.vocabulary) > rows:
            raise ValueError(
                f"The vocabulary of {self.origin} has {len(self.vocabulary)} "
                f"tokens, its embedding table {rows} rows: they are not of "
                "one model"
            )
        return FixedHeadTokenizer(
            list(self.vocabulary),
            lowercase=self.lowercase,
            special_tokens_in_strings=self.special_tokens_in_strings,
        )

    def differing_texts(self, tokenize, texts):
        """Texts that the source's own tokenizer takes apart in another way.

        Args:
            tokenize: as the attribute of that name, such as a
                `FixedHeadTokenizer`.
            texts: a list of str.

        Returns:
            A list of str; an empty one if the source has no tokenizer.
        """
        if self.tokenize is None:
            return []
        return [
            text
            for text, theirs, ours in zip(
                texts, self.tokenize(texts), tokenize(texts)
            )
            if list(theirs) != list(ours)
        ]

    def left_out(self, model):
        """The tensors that `model`, made of this source, has no use for.

        Returns:
            A list of str, the source's names.
        """
        used = named_weights(model)
        return [self._spell(name) for name in self.tensors if name not in used]

    def _preprocessor(self, task):
        if task == "backbone":
            return None
        longest = self.config["max_sequence_length"]
        length = self.sequence_length or longest
        if not 2 < length <= longest:
            raise ValueError(
                "`sequence_length` must be over 2 (the special tokens) and at "
                f"most {longest}, the positions {self.origin} has embeddings "
                f"for. Received: {length}"
            )
        if task == "masked_lm":
            return FixedHeadMaskedLMPreprocessor(
                self.tokenizer(), sequence_length=length
            )
        if self.pooling_mode is None:
            raise ValueError(
                f"{self.origin} does not say how it pools tokens to one "
                f"embedding. Pass `pooling_mode`, one of {POOLING_MODES}, or "
                "a `task` other than text_embedder"
            )
        return FixedHeadTextEmbedderPreprocessor(
            self.tokenizer(),
            sequence_length=length,
            prompts=dict(self.prompts) or None,
        )

    def _assign(self, weights):
        """Gives the weights their tensors, after all of them were checked."""
        for names, problem in (
            (weights.keys() - self.tensors.keys(), "lacks"),
            (
                self.tensors.keys() - weights.keys() - _OPTIONAL,
                "holds what this architecture has no place for:",
            ),
        ):
            if names:
                raise ValueError(
                    f"{self.origin} {problem} "
                    f"{_listed(sorted(map(self._spell, names)))}"
                )
        wrong = [
            f"{self._spell(name)} {self.tensors[name].shape} instead of "
            f"{tuple(weight.shape)}"
            for name, weight in weights.items()
            if self.tensors[name].shape != tuple(weight.shape)
        ]
        if wrong:
            raise ValueError(
                f"Tensors of {self.origin} do not have the shape that its "
                f"configuration gives them (dense kernels as [inputs, "
                f"outputs]): {_listed(wrong)}"
            )
        for name, weight in weights.items():
            if not np.isfinite(self.tensors[name]).all():
                raise ValueError(
                    f"{self._spell(name)} of {self.origin} is not finite"
                )
            weight.assign(self.tensors[name])

    def _spell(self, name):
        return self.source_names.get(name) or self.spell(name)


def named_weights(model):
    """The weights of a model under the names of BERT's first checkpoints.

    Args:
        model: a `FixedHeadBackbone`, or a task with one.

    Returns:
        A dictionary from names to `keras.Variable`s.
    """
    backbone = getattr(model, "backbone", model)
    weights = {
        WORD_EMBEDDINGS: backbone.token_embedding.embeddings,
        "bert/embeddings/position_embeddings": (
            backbone.position_embedding.position_embeddings
        ),
        "bert/embeddings/token_type_embeddings": (
            backbone.segment_embedding.embeddings
        ),
    }
    layers = {"bert/embeddings/LayerNorm": backbone.embeddings_layer_norm}
    for i, block in enumerate(backbone.transformer_layers):
        for path, name in _BLOCK.items():
            layer = block
            for attribute in path.split("."):
                layer = getattr(layer, attribute)
            layers[f"bert/encoder/layer_{i}/{name}"] = layer
    if backbone.pooled_dense is not None:
        layers[_POOLER] = backbone.pooled_dense
    if getattr(model, "next_sentence_dense", None) is not None:
        layers[_NEXT_SENTENCE] = model.next_sentence_dense
    for name, layer in layers.items():
        parts = (
            ("gamma", "beta")
            if isinstance(layer, keras.layers.LayerNormalization)
            else ("kernel", "bias")
        )
        for part in parts:
            weights[f"{name}/{part}"] = getattr(layer, part)
    if isinstance(model, FixedHeadMaskedLM):
        for weight in model.masked_lm_head.weights:
            name = weight.path.partition("masked_lm_head/")[2]
            if name:  # it has the token embedding's, too
                weights[_MASKED_LM_HEAD[name]] = weight
    return weights


def _listed(items, most=8):
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")
