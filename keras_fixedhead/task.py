"""What the tasks and their preprocessors share.

Shape letters: B batch, T sequence length.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import (
    Tensor,
    Tensors,
    refuse_unknown_arguments,
)
from keras_fixedhead.tokenizer import FixedHeadTokenizer


class FixedHeadPreprocessor(keras_hub.models.Preprocessor):
    """Base of the preprocessors of tasks with a `FixedHeadBackbone`."""

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def padding_mask(self, token_ids: Tensor) -> Tensor:
        """True up to the last id of each row `[..., T]` that is not `[PAD]`.

        A text may contain `[PAD]`; every row ends in `[SEP]` before the
        padding. Takes arrays and tensors of the backend or of TensorFlow, and
        returns the same kind.
        """
        mask = token_ids != self.tokenizer.pad_token_id
        if isinstance(mask, np.ndarray):
            backwards = np.maximum.accumulate(mask[..., ::-1], axis=-1)
            # PyTorch takes no negative strides.
            return np.ascontiguousarray(backwards[..., ::-1])
        tf = sys.modules.get("tensorflow")
        if tf is not None and tf.is_tensor(mask):
            mask = tf.cast(mask, "int32")
            return tf.math.cumsum(mask, axis=-1, reverse=True) > 0
        backwards = ops.flip(ops.cast(mask, "int32"), axis=-1)
        return ops.flip(ops.cumsum(backwards, axis=-1), axis=-1) > 0

    def room(self, sequence_length: int | None, num_texts: int) -> int:
        """The tokens of a row that remain beside `[CLS]` and each `[SEP]`.

        `sequence_length` is a limit below the preprocessor's own, or `None`.
        """
        limit = self.sequence_length
        if sequence_length is not None:
            limit = min(limit, sequence_length)
        check_room(limit, num_texts)
        return limit - 1 - num_texts

    def pack_in_graph(self, texts: Sequence[Tensor]) -> Tensors:
        """Packs texts in TensorFlow's graph, padded to the longest row.

        Takes an int32 `tf.RaggedTensor` `[B, None]` for each text of a row,
        and returns the backbone's inputs, int32 tensors `[B, T]`.
        """
        import tensorflow as tf

        column = tf.ones((texts[0].nrows(out_type="int32"), 1), "int32")
        pieces = [column * self.tokenizer.start_token_id]
        segments = [tf.zeros_like(column)]
        for number, text in enumerate(texts):
            pieces += [text, column * self.tokenizer.end_token_id]
            segments += [tf.ones_like(text) * number, column * number]
        ids = tf.concat(pieces, axis=1)
        pad = self.tokenizer.pad_token_id
        return {
            "token_ids": ids.to_tensor(default_value=pad),
            # A text may contain [PAD], hence no comparison.
            "padding_mask": tf.ones_like(ids).to_tensor(),
            "segment_ids": tf.concat(segments, axis=1).to_tensor(),
        }


def check_room(sequence_length: int, num_texts: int = 1) -> None:
    """Raises unless a row has room for a token beside the special ones."""
    special = 1 + num_texts
    if sequence_length <= special:
        raise ValueError(
            f"`sequence_length` must be over {special}, the special tokens. "
            f"Received: sequence_length={sequence_length}"
        )


def pad_rows(
    rows: Iterable[Sequence[int]], shape: tuple[int, int], fill: int = 0
) -> np.ndarray:
    """An int32 array that begins with the rows, each padded on the right."""
    padded = np.full(shape, fill, "int32")
    for place, row in zip(padded, rows):
        place[: len(row)] = row
    return padded


class FixedHeadTask:
    """Mixin of the tasks with a `FixedHeadBackbone`.

    It cannot inherit from KerasHub's `Task`, because Keras builds no model
    class that reaches a base along two paths.

    A task's `..._packed` method returns what calling the model returns, but
    computes real tokens only; see `FixedHeadBackbone.encode_packed` for where
    it runs, and for its arguments `inputs`, `training` and `fixed_size`.
    """

    backbone_cls = FixedHeadBackbone

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: FixedHeadPreprocessor | None,
        inputs: Tensors,
        outputs: Tensor | Tensors,
        **kwargs: Any,
    ):
        refuse_unknown_arguments(self, kwargs)
        self.backbone = backbone
        self.preprocessor: Any = preprocessor
        super().__init__(  # type: ignore[call-arg]  # a mixin
            inputs=inputs, outputs=outputs, **kwargs
        )

    @classmethod
    def from_preset(cls, preset: str, *args: Any, **kwargs: Any) -> Self:
        model = super().from_preset(  # type: ignore[misc]  # a mixin
            preset, *args, **kwargs
        )
        longest = model.backbone.max_sequence_length
        preprocessor = model.preprocessor
        # Another task's preset has no preprocessor for this task, and the
        # default length may be too long.
        if preprocessor is not None and preprocessor.sequence_length > longest:
            model._limit_sequence_length(longest)
        return model

    def _limit_sequence_length(self, longest):
        self.preprocessor.sequence_length = longest
