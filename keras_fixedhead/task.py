"""What the tasks and their preprocessors share.

Shape letters: B batch, T sequence length, N rows.
"""

import sys
from collections.abc import Sequence
from typing import Any, Self

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.layer_config import (
    Tensor,
    Tensors,
    arguments_of,
    refuse_unknown_arguments,
)
from keras_fixedhead.tokenizer import FixedHeadTokenizer


class FixedHeadPreprocessor(keras_hub.models.Preprocessor):
    """Base of the preprocessors that pack a text, or a pair, into a sequence.

    For the sequence see `FixedHeadTextClassifierPreprocessor`.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def call(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        texts = x if isinstance(x, tuple) else (x,)
        rows = self._cut([self.tokenizer(text) for text in texts])
        token_ids, segment_ids = self.packer(tuple(rows))
        inputs = {
            "token_ids": token_ids,
            "padding_mask": self._padding_mask(token_ids),
            "segment_ids": segment_ids,
        }
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def _cut(self, rows):
        """Cuts some of the tokenized texts, before they are truncated."""
        return rows

    def _padding_mask(self, token_ids):
        """True up to the last id that is not `[PAD]`; texts may contain it."""
        tf = sys.modules.get("tensorflow")
        library = ops
        if isinstance(token_ids, np.ndarray):
            library = np
        elif tf is not None and tf.is_tensor(token_ids):
            library = tf  # in a graph, on other backends too
        real = library.where(token_ids != self.tokenizer.pad_token_id, 1, 0)
        counts = library.cumsum(real, axis=-1)
        return counts - real < counts[..., -1:]

    def room(self, sequence_length: int | None, num_texts: int) -> int:
        """The tokens of a row that remain beside `[CLS]` and each `[SEP]`."""
        limit = self.sequence_length
        if sequence_length is not None:
            limit = min(limit, sequence_length)
        special = 1 + num_texts
        if limit <= special:
            raise ValueError(
                f"`sequence_length` must be over {special}, the special "
                f"tokens. Received: sequence_length={limit}"
            )
        return limit - special

    def pack_to_longest(
        self, texts: Sequence[Tensor], sequence_length: int | None = None
    ) -> Tensors:
        """Packs string `tf.Tensor` `[B]`, padded only to the longest row."""
        import tensorflow as tf

        room = self.room(sequence_length, len(texts))
        rows = [
            tf.cast(self.tokenizer.tokenize_in_graph(text), "int32")
            for text in map(tf.convert_to_tensor, texts)
        ]
        rows = self._cut(rows)
        if len(rows) == 1:
            return self.pack_in_graph([rows[0][:, :room]])
        # Not tensorflow-text's trimmers: every server has these operations.
        first, second = (row.row_lengths() for row in rows)
        most = room
        if self.truncate == "round_robin":
            # The larger half, or the rest that the second text leaves.
            most = tf.maximum(room - second, (room + 1) // 2)
        first = tf.minimum(first, most)
        kept = []
        for row, length in zip(rows, (first, tf.minimum(second, room - first))):
            starts = row.row_starts()
            places = tf.ragged.range(starts, starts + length)
            kept.append(tf.gather(row.values, places))
        return self.pack_in_graph(kept)

    def pack_in_graph(self, texts: Sequence[Tensor]) -> Tensors:
        """Packs int32 `tf.RaggedTensor`s `[B, None]` in TensorFlow's graph."""
        import tensorflow as tf
        import tensorflow_text as tf_text

        start, end = self.tokenizer.start_token_id, self.tokenizer.end_token_id
        ids, segments = tf_text.combine_segments(texts, start, end)
        return {
            "token_ids": ids.to_tensor(self.tokenizer.pad_token_id),
            # A text may contain [PAD], hence no comparison.
            "padding_mask": tf.ones_like(ids).to_tensor(),
            "segment_ids": segments.to_tensor(),
        }

    def pad_rows(
        self,
        rows: Sequence[Sequence[int]],
        shape: tuple[int, int],
        seconds: Sequence[int] | None = None,
    ) -> dict[str, np.ndarray]:
        """Rows of packed ids as the backbone's inputs, int32 `[N, T]`."""
        inputs = {
            "token_ids": np.full(shape, self.tokenizer.pad_token_id, "int32"),
            "padding_mask": np.zeros(shape, "int32"),
            "segment_ids": np.zeros(shape, "int32"),
        }
        for number, row in enumerate(rows):
            inputs["token_ids"][number, : len(row)] = row
            inputs["padding_mask"][number, : len(row)] = 1
            if seconds is not None:
                inputs["segment_ids"][number, seconds[number] : len(row)] = 1
        return inputs


class FixedHeadTask:
    """Mixin of the tasks with a `FixedHeadBackbone`.

    It cannot inherit from KerasHub's `Task`, because Keras builds no model
    class that reaches a base along two paths.

    A task's `..._packed` method returns what calling the model returns, but
    computes real tokens only; see `FixedHeadBackbone.encode_packed`.
    """

    backbone_cls = FixedHeadBackbone

    def __init__(
        self,
        backbone: FixedHeadBackbone,
        preprocessor: keras_hub.models.Preprocessor | None,
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
        if "num_classes" in kwargs:
            # KerasHub then makes a new head, which saved labels do not fit.
            kwargs.setdefault("labels", None)
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

    def get_config(self) -> dict:
        base = super().get_config()  # type: ignore[misc]  # a mixin
        return {**base, **arguments_of(self)}
