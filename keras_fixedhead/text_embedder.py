"""One embedding per text: the encoder, pooled and normalized.

Shape letters: B batch, T sequence length, D embedding size.
"""

from collections.abc import Sequence
from typing import Any

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.argument_checks import one_of, positive_int
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.layer_config import Tensor, Tensors, at_least_float32
from keras_fixedhead.task import FixedHeadPreprocessor, FixedHeadTask
from keras_fixedhead.tokenizer import FixedHeadTokenizer

POOLING_MODES = ("mean", "cls", "max")
# Longer lists show their progress.
_LONG_LIST = 100


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextEmbedderPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.TextEmbedderPreprocessor
):
    """Tokenizes, adds `[CLS]` and `[SEP]`, truncates and pads.

    `prompts` are texts to put before every text of a kind, by its name
    (`"query"`, `"document"`). For the rest see
    `FixedHeadTextClassifierPreprocessor`.
    """

    def __init__(
        self,
        tokenizer: FixedHeadTokenizer,
        sequence_length: int = 256,
        prompts: dict[str, str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.room(None, 1)
        self.prompts = dict(prompts or {})

    def prompt(self, name: str | None) -> str:
        """The text of a prompt; the empty one for `None`."""
        if name is None:
            return ""
        if name not in self.prompts:
            names = ", ".join(sorted(self.prompts)) or "it has none"
            raise ValueError(
                f"`prompt` must be None or one of this model's ({names}). "
                f"Received: prompt={name!r}"
            )
        return self.prompts[name]

    def pad_to_longest(
        self,
        text: Tensor,
        prompt: str | None = None,
        sequence_length: int | None = None,
    ) -> Tensors:
        """As `FixedHeadTextClassifierPreprocessor.pad_to_longest`, prompted."""
        import tensorflow as tf

        text = self.prompt(prompt) + tf.convert_to_tensor(text)
        return self.pack_to_longest([text], sequence_length)

    def get_config(self) -> dict:
        return {**super().get_config(), "prompts": self.prompts}


def pool(sequence_output: Tensor, padding_mask: Tensor, mode: str) -> Tensor:
    """Pools the real tokens of each sequence `[B, T, D]` to `[B, D]`.

    In float32 at least. Without real tokens the result is zero, unless `mode`
    is `"cls"`, the first token. `padding_mask` is `[B, T]`, 1 = real token.
    """
    one_of("pooling_mode", mode, POOLING_MODES)
    x = at_least_float32(sequence_output)
    if mode == "cls":
        # Not x[:, 0], which fails on an empty batch of length 0.
        return ops.sum(x[:, :1, :], axis=1)
    mask = ops.expand_dims(ops.cast(padding_mask, x.dtype), -1)
    if mode == "mean":
        lengths = ops.maximum(ops.sum(mask, axis=1), 1.0)
        return ops.sum(x * mask, axis=1) / lengths
    pooled = ops.max(x + (1.0 - mask) * -1e9, axis=1)
    return pooled * ops.max(mask, axis=1)


def refuse_blind_token(backbone: FixedHeadBackbone, mode: str) -> None:
    """Raises ValueError if the pooled token sees no other token."""
    if mode == "cls" and backbone.causal:
        raise ValueError(
            "The first token of a backbone with causal=True sees no other. "
            f"Received: pooling_mode={mode!r}"
        )


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextEmbedder(FixedHeadTask, keras_hub.models.TextEmbedder):
    """Embeds texts with a `FixedHeadBackbone`.

    Args:
        pooling_mode: `"mean"`, `"max"` or, unless the backbone is causal,
            `"cls"`.
        normalize: whether embeddings have length 1.
        embedding_dim: from 1 to D; keeps the first dimensions of the pooled
            vector before normalization; `None` keeps all D. A model trained
            for it (Kusupati et al. 2022, "Matryoshka Representation
            Learning") loses little accuracy.
        projection_dim: E; a matrix `[D, E]` maps the pooled vector to E
            numbers, such as the embeddings of a larger model, of which
            `embedding_dim` then keeps the first. `None`: no matrix.

    Call arguments:
        inputs: the backbone's inputs, a dictionary of int tensors `[B, T]`.

    Returns:
        Embeddings `[B, embedding_size]`, float32 unless the model computes in
        float64.

    Example:

    ```python
    embedder = FixedHeadTextEmbedder.from_preset("runs/demo/train/preset")
    embedder.encode_text(["reverse the order of the rows"])
    ```
    """

    preprocessor_cls = FixedHeadTextEmbedderPreprocessor

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: FixedHeadTextEmbedderPreprocessor | None = None,
        pooling_mode: str = "mean",
        normalize: bool = True,
        embedding_dim: int | None = None,
        projection_dim: int | None = None,
        **kwargs: Any,
    ):
        refuse_blind_token(backbone, pooling_mode)

        # === Config ===
        self.pooling_mode = pooling_mode
        self.normalize = normalize
        self.projection_dim = positive_int(
            "projection_dim", projection_dim, optional=True
        )
        self.embedding_dim = positive_int(
            "embedding_dim",
            embedding_dim,
            optional=True,
            most=self.projection_dim or backbone.hidden_dim,
        )
        self._encoder: TextEncoder | None = None

        # === Layers ===
        self.projection: Any = None
        if self.projection_dim is not None:
            dtype = keras.backend.result_type(backbone.compute_dtype, "float32")
            self.projection = keras.layers.Dense(
                self.projection_dim,
                use_bias=False,
                dtype=dtype,
                name="projection",
            )

        # === Functional Model ===
        inputs = backbone.input
        outputs = self._embed(
            backbone(inputs)["sequence_output"], inputs["padding_mask"]
        )
        super().__init__(backbone, preprocessor, inputs, outputs, **kwargs)

    @property
    def embedding_size(self) -> int:
        """How many numbers an embedding has."""
        size = self.embedding_dim or self.projection_dim
        return size or self.backbone.hidden_dim

    def embed_packed(
        self,
        inputs: Tensors,
        training: bool = False,
        fixed_size: bool = False,
    ) -> Tensor:
        """The same embeddings, of real tokens only; see `encode_packed`."""
        x, packing = self.backbone.encode_packed(inputs, training, fixed_size)
        return self._embed(packing.pad(x), inputs["padding_mask"])

    def embed_packed_states(
        self,
        inputs: Tensors,
        training: bool = False,
        fixed_size: bool = False,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """`embed_packed`, states and scores as in `encode_packed_states`."""
        states, packing, scores = self.backbone.encode_packed_states(
            inputs, training, fixed_size, return_attention_scores=True
        )
        padded = packing.pad(states[-1])
        return self._embed(padded, inputs["padding_mask"]), states, scores

    def encode_text(
        self,
        text: str | Sequence[str],
        prompt: str | None = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
    ) -> np.ndarray:
        """Embeds a string or a list of B strings, float32 `[B, D]`.

        `prompt` names one of the preprocessor's prompts, `batch_size` is that
        of `TextEncoder`, and `verbose=0` hides the progress of long lists.
        """
        texts = [text] if isinstance(text, str) else list(text)
        encoder = self._encoder
        if encoder is None or encoder.batch_size != batch_size:
            encoder = self._encoder = TextEncoder(self, batch_size=batch_size)
        shown = verbose not in (0, False) and len(texts) > _LONG_LIST
        return encoder(texts, prompt, label="Embedding" if shown else None)

    def _embed(self, sequence_output, padding_mask):
        pooled = pool(sequence_output, padding_mask, self.pooling_mode)
        if self.projection is not None:
            pooled = self.projection(pooled)
        if self.embedding_dim is not None:
            pooled = pooled[:, : self.embedding_dim]
        if self.normalize:
            pooled = ops.normalize(pooled, axis=-1, order=2)
        return pooled
