"""From texts to the inputs of a `FixedHeadTextEmbedder`.

Shape letters: B batch, T sequence length.
"""

import keras
import keras_hub

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.padding_mask import until_last
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextEmbedderPreprocessor(
    keras_hub.models.TextEmbedderPreprocessor
):
    """Tokenizes, adds `[CLS]` and `[SEP]`, truncates and pads.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int over 2. The longest sequence, `[CLS]` and
            `[SEP]` included; longer texts are truncated on the right.
        prompts: dict from a name (`"query"`, `"document"`) to the text put
            before every text of that kind, or `None`.
        **kwargs: as in `keras_hub.models.TextEmbedderPreprocessor`.

    Call arguments:
        x: a string, or a list or tensor of B strings.

    Returns:
        A dictionary of int tensors `[B, sequence_length]`: `token_ids`,
        `padding_mask` (1 = real token) and `segment_ids`.

    Raises:
        ValueError: if `sequence_length` leaves no room for a token beside
            `[CLS]` and `[SEP]`.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def __init__(self, tokenizer, sequence_length=256, prompts=None, **kwargs):
        _refuse_no_room(sequence_length)
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.prompts = dict(prompts or {})

    def prompt(self, name):
        """The text of a prompt; `None` names the empty one.

        Raises:
            ValueError: if there is no prompt of that name.
        """
        if name is None:
            return ""
        if name not in self.prompts:
            raise ValueError(
                "`prompt` must be None or the name of a prompt of this model "
                f"({', '.join(sorted(self.prompts)) or 'it has none'}). "
                f"Received: prompt={name!r}"
            )
        return self.prompts[name]

    def pad_to_longest(self, text, prompt=None, sequence_length=None):
        """The same as calling, padded only to the longest row.

        TensorFlow graph operations, for `tf.data` and exported signatures.

        Args:
            text: string `tf.Tensor` `[B]`.
            prompt: str or `None`. The name of the prompt to put before each.
            sequence_length: int or `None`. A limit below the model's own.

        Returns:
            A dictionary of int32 tensors `[B, T]`, T the length of the
            longest row, at most `sequence_length`.

        Raises:
            ValueError: if there is no prompt of that name, or the limit
                leaves no room for a token beside `[CLS]` and `[SEP]`.
        """
        import tensorflow as tf

        text = tf.convert_to_tensor(text)
        limit = self.sequence_length
        if sequence_length is not None:
            limit = min(limit, sequence_length)
        _refuse_no_room(limit)
        ids = self.tokenizer.tokenize_in_graph(self.prompt(prompt) + text)
        ids = tf.cast(ids[:, : limit - 2], "int32")
        column = tf.ones((tf.shape(text)[0], 1), "int32")
        ids = tf.concat(
            [
                column * self.tokenizer.start_token_id,
                ids,
                column * self.tokenizer.end_token_id,
            ],
            axis=1,
        )
        token_ids = ids.to_tensor(default_value=self.tokenizer.pad_token_id)
        # An id of [PAD] inside a text is a real token, hence no comparison.
        padding_mask = tf.ones_like(ids).to_tensor()
        return {
            "token_ids": token_ids,
            "padding_mask": padding_mask,
            "segment_ids": tf.zeros_like(token_ids),
        }

    def _format_output(self, token_ids, segment_ids):
        return {
            "token_ids": token_ids,
            "padding_mask": until_last(
                token_ids != self.tokenizer.pad_token_id
            ),
            "segment_ids": segment_ids,
        }

    def get_config(self):
        config = super().get_config()
        config.update(prompts=self.prompts)
        return config


def _refuse_no_room(sequence_length):
    if sequence_length < 3:
        raise ValueError(
            "`sequence_length` must be over 2, the special tokens. Received: "
            f"sequence_length={sequence_length}"
        )
