"""A BERT read from any format, and the models built from it.

Every reader names the tensors as BERT's first checkpoints do
(`bert/encoder/layer_0/attention/self/query/kernel`), with dense kernels as
`[inputs, outputs]`. Building a model uses each tensor exactly once.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_fixedhead.argument_checks import one_of, positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.growth import backbone_of
from keras_fixedhead.masked_lm import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
)
from keras_fixedhead.text_embedder import (
    POOLING_MODES,
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.tokenizer import SPECIAL_TOKENS, FixedHeadTokenizer

Model: TypeAlias = FixedHeadBackbone | FixedHeadMaskedLM | FixedHeadTextEmbedder

TASKS = ("text_embedder", "masked_lm", "backbone")

# These texts show whether a tokenizer maps special tokens in texts to ids.
SPECIAL_TOKEN_TEXTS = tuple(
    f"a{space}{token}{space}b"
    for token in SPECIAL_TOKENS
    for space in (" ", "")
)

EMBEDDING_TABLES = (
    "bert/embeddings/word_embeddings",
    "bert/embeddings/position_embeddings",
    "bert/embeddings/token_type_embeddings",
)
EMBEDDINGS_NORM = "bert/embeddings/LayerNorm"
POOLER = "bert/pooler/dense"
NEXT_SENTENCE = "cls/seq_relationship"
MASKED_LM_DENSE = "cls/predictions/transform/dense"
MASKED_LM_NORM = "cls/predictions/transform/LayerNorm"
MASKED_LM_BIAS = "cls/predictions/output_bias"
# Of sentence-transformers' module after pooling; BERT's checkpoints have none.
PROJECTION = "bert/linear/kernel"

# BERT's names of a Transformer block's layers, with our attributes.
BLOCK_LAYERS = {
    "attention/self/query": "attention.query",
    "attention/self/key": "attention.key",
    "attention/self/value": "attention.value",
    "attention/output/dense": "attention.attention_output",
    "attention/output/LayerNorm": "attention_layer_norm",
    "intermediate/dense": "intermediate_dense",
    "output/dense": "output_dense",
    "output/LayerNorm": "output_layer_norm",
}


def encoder_weights(
    backbone: keras.Model, block_layers: Mapping[str, str] = BLOCK_LAYERS
) -> dict[str, keras.Variable]:
    """Variables of our encoder or KerasHub's, by BERT's names."""
    tables = (
        backbone.token_embedding.embeddings,
        backbone.position_embedding.position_embeddings,
        backbone.segment_embedding.embeddings,
    )
    layers = {EMBEDDINGS_NORM: backbone.embeddings_layer_norm}
    for i, block in enumerate(backbone.transformer_layers):
        for name, path in block_layers.items():
            layer = operator.attrgetter(path)(block)
            layers[f"bert/encoder/layer_{i}/{name}"] = layer
    if backbone.pooled_dense is not None:
        layers[POOLER] = backbone.pooled_dense
    return {**dict(zip(EMBEDDING_TABLES, tables)), **layer_weights(layers)}


def layer_weights(
    layers: Mapping[str, keras.layers.Layer],
) -> dict[str, keras.Variable]:
    return {
        name: weight
        for layer, built in layers.items()
        for name, weight in zip(weight_names(layer), built.weights)
    }


def join_heads(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Lays heads side by side.

    Kernels `[D, N, H]` become `[D, N * H]` and `[N, H, D]` become
    `[N * H, D]`; biases `[N, H]` become `[N * H]`.
    """
    joined = dict(tensors)
    for name, tensor in tensors.items():
        bias = tensors.get(name.replace("/kernel", "/bias"))
        if name.endswith("/bias"):
            joined[name] = tensor.ravel()
        elif tensor.ndim == 3 and bias is not None:
            joined[name] = tensor.reshape(-1, bias.size)
    return joined


def weight_names(layer_name: str) -> list[str]:
    if layer_name.endswith("LayerNorm"):
        return [f"{layer_name}/gamma", f"{layer_name}/beta"]
    return [f"{layer_name}/kernel", f"{layer_name}/bias"]


# Models without the parts that use these may leave them out.
_OPTIONAL = {MASKED_LM_BIAS, PROJECTION}.union(
    *map(weight_names, (POOLER, NEXT_SENTENCE, MASKED_LM_DENSE, MASKED_LM_NORM))
)


@dataclasses.dataclass(frozen=True)
class BertSource:
    """A BERT as a format holds it: its tensors and settings.

    An attribute is `None` where the source does not state it.

    Attributes:
        origin: Where it was read from, for messages.
        config: The arguments of its `FixedHeadBackbone` except `pooler`.
        tensors: Float arrays under the names of BERT's first checkpoints.
            A tensor that BERT does not have keeps its own name; `build`
            refuses it.
        spell: Maps a tensor's name to the source's name for it, also if the
            source lacks the tensor.
        vocabulary: Its tokens in the order of their ids.
        lowercase, special_tokens_in_strings: See `FixedHeadTokenizer`.
        pooling_mode, normalize: See `FixedHeadTextEmbedder`.
        sequence_length: The longest input in tokens.
        prompts: Text put before each text, by the prompt's name.
        default_prompt: The name of the prompt it uses by default.
        encode: Runs the source itself: maps int arrays `token_ids`,
            `segment_ids` and `padding_mask`, each `[B, T]`, to
            `sequence_output` `[B, T, D]` and, where it has them,
            `pooled_output` `[B, D]` and the logits `masked_lm` `[B, T, V]`
            and `next_sentence` `[B, 2]`.
        tokenize: The source's own tokenizer: maps strings to lists of ids
            without the special tokens around a text.
    """

    origin: str
    config: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
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
    tokenize: Any = None

    def build(self, task: str = "text_embedder") -> Model:
        """Builds a model with the source's weights, and its preprocessor.

        `task` is `"text_embedder"`, `"masked_lm"` (with next sentences if the
        source predicts them) or `"backbone"` (with a pooler if the source has
        one). A `ValueError` names tensors that are missing, misshaped or
        unused, and settings that the source does not state.
        """
        one_of("task", task, TASKS)
        tensors = self.tensors
        pooler = f"{POOLER}/kernel" in tensors
        next_sentence = pooler and f"{NEXT_SENTENCE}/kernel" in tensors
        preprocessor = self._preprocessor(task)
        keeps = {"masked_lm": next_sentence, "backbone": pooler}
        model = backbone = FixedHeadBackbone(
            **self.config, pooler=keeps.get(task, False)
        )
        if task == "text_embedder":
            kernel = tensors.get(PROJECTION)
            model = FixedHeadTextEmbedder(
                backbone,
                preprocessor,
                # `_preprocessor` refuses None.
                pooling_mode=str(self.pooling_mode),
                normalize=self.normalize is not False,
                projection_dim=None if kernel is None else len(kernel.T),
            )
        elif task == "masked_lm":
            model = FixedHeadMaskedLM(
                backbone, preprocessor, next_sentence=next_sentence
            )
        self._assign(named_weights(model))
        return model

    def tokenizer(self) -> FixedHeadTokenizer:
        vocabulary, lowercase = self.vocabulary, self.lowercase
        if vocabulary is None or lowercase is None:
            name = "vocabulary" if vocabulary is None else "lowercase"
            raise ValueError(
                f"{self.origin} does not state its `{name}`: pass it"
            )
        rows = self.config["vocabulary_size"]
        if len(vocabulary) > rows:
            raise ValueError(
                f"The vocabulary of {self.origin} has {len(vocabulary)} "
                f"tokens, its embedding table {rows} rows: they belong to "
                "different models"
            )
        return FixedHeadTokenizer(
            list(vocabulary),
            lowercase=lowercase,
            special_tokens_in_strings=self.special_tokens_in_strings,
        )

    def differing_texts(
        self, tokenize: Callable, texts: Sequence[str]
    ) -> list[str]:
        """Texts that `tokenize` maps to other ids than `self.tokenize`."""
        rows = zip(texts, self.tokenize(texts), tokenize(texts))
        return [text for text, x, y in rows if list(x) != list(y)]

    def left_out(self, model: Model) -> list[str]:
        """Source names of the tensors that `model` does not use."""
        used = named_weights(model)
        return [self.spell(name) for name in self.tensors if name not in used]

    def _preprocessor(self, task):
        if task == "backbone":
            return None
        longest = self.config["max_sequence_length"]
        length = self.sequence_length or longest
        # Two are special tokens.
        positive_int("sequence_length", length, least=3, most=longest)
        if task == "masked_lm":
            return FixedHeadMaskedLMPreprocessor(
                self.tokenizer(), sequence_length=length
            )
        if self.pooling_mode is None:
            raise ValueError(
                f"{self.origin} does not state how it pools tokens. Pass "
                f"`pooling_mode`, one of {POOLING_MODES}, or a `task` other "
                "than text_embedder"
            )
        return FixedHeadTextEmbedderPreprocessor(
            self.tokenizer(),
            sequence_length=length,
            prompts=dict(self.prompts) or None,
        )

    def _assign(self, weights):
        tensors = self.tensors
        self._refuse("lacks", weights.keys() - tensors.keys())
        self._refuse(
            "holds tensors that this architecture has no place for:",
            tensors.keys() - weights.keys() - _OPTIONAL,
        )
        shapes = {
            name: f" {tensors[name].shape} instead of {tuple(weight.shape)}"
            for name, weight in weights.items()
            if tensors[name].shape != tuple(weight.shape)
        }
        self._refuse("has other shapes than its configuration:", shapes, shapes)
        infinite = [x for x in weights if not np.isfinite(tensors[x]).all()]
        self._refuse("is not finite:", infinite)
        for name, weight in weights.items():
            weight.assign(tensors[name])

    def _refuse(self, problem, names, notes=None):
        """Raises an error that names tensors, if any, each with its note."""
        spelled = sorted(
            self.spell(x) + (notes or {}).get(x, "") for x in names
        )
        if spelled:
            more = f" and {len(spelled) - 8} more" if spelled[8:] else ""
            raise ValueError(
                f"{self.origin} {problem} {', '.join(spelled[:8])}{more}"
            )


def named_weights(model: Model) -> dict[str, keras.Variable]:
    """Variables of a model by their names in BERT's first checkpoints."""
    weights = encoder_weights(backbone_of(model))
    if isinstance(model, FixedHeadMaskedLM):
        head = model.masked_lm_head
        layers = {
            MASKED_LM_DENSE: head._intermediate_dense,
            MASKED_LM_NORM: head._intermediate_layer_norm,
        }
        if model.next_sentence:
            layers[NEXT_SENTENCE] = model.next_sentence_dense
        weights |= {**layer_weights(layers), MASKED_LM_BIAS: head._bias}
    if getattr(model, "projection", None) is not None:
        weights[PROJECTION] = model.projection.kernel
    return weights
