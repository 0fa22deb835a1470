"""From texts to the inputs of a `FixedHeadTextEmbedder`.

Shape letters: B batch, T sequence length.
"""

import keras
import keras_hub

from keras_fixedhead.preprocessor import FixedHeadPreprocessor, check_room


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadTextEmbedderPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.TextEmbedderPreprocessor
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

    def __init__(self, tokenizer, sequence_length=256, prompts=None, **kwargs):
        check_room(sequence_length)
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.prompts = dict(prompts or {})

    def prompt(self, name):
        """The text of a prompt; the empty one for `None`."""
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

        Takes a string `tf.Tensor` `[B]`, and optionally the name of the prompt
        to put before each text and a `sequence_length` below the
        preprocessor's.
        """
        import tensorflow as tf

        text = tf.convert_to_tensor(text)
        room = self.room(sequence_length, num_texts=1)
        ids = self.tokenizer.tokenize_in_graph(self.prompt(prompt) + text)
        return self.pack_in_graph([tf.cast(ids[:, :room], "int32")])

    def _format_output(self, token_ids, segment_ids):
        return {
            "token_ids": token_ids,
            "padding_mask": self.padding_mask(token_ids),
            "segment_ids": segment_ids,
        }

    def get_config(self):
        return {**super().get_config(), "prompts": self.prompts}
