"""From texts to the inputs and labels of a `FixedHeadCausalLM`, and back."""

import keras
import keras_hub

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.tokenizer import FixedHeadTokenizer


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadCausalLMPreprocessor(keras_hub.models.CausalLMPreprocessor):
    """Tokenizes, adds `[CLS]` and `[SEP]`, and makes labels of what follows.

    `[CLS]` starts a text, so that its first word is predicted as well, and
    `[SEP]` ends it. A text that is too long is cut, and ends in `[SEP]` too.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The length T of all sequences.
        **kwargs: as in `keras_hub.models.CausalLMPreprocessor`:
            `add_start_token`, `add_end_token`.

    Call arguments:
        x: a string, or a list or tensor of B strings.
        sequence_length: int or `None`. A length instead of the model's own.

    Returns:
        `(x, y, sample_weight)`: a dictionary of tensors `[B, T]`, `token_ids`
        and `padding_mask` (1 = real token); the ids of the tokens that
        follow, `[B, T]`; and 1 where there is one.

    `generate_preprocess` makes the beginnings of sequences: the same without
    `[SEP]` and labels. `generate_postprocess` makes texts of sequences,
    without special tokens, `[UNK]` among them, and with a space between words
    and signs.
    """

    backbone_cls = FixedHeadBackbone
    tokenizer_cls = FixedHeadTokenizer

    def __init__(self, tokenizer, sequence_length=256, **kwargs):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
