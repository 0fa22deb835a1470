"""From texts to the inputs and labels of a `FixedHeadCausalLM`, and back."""

import keras
import keras_hub

from keras_fixedhead.preprocessor import FixedHeadPreprocessor


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadCausalLMPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.CausalLMPreprocessor
):
    """Tokenizes, adds `[CLS]` and `[SEP]`, and makes labels of next tokens.

    `[CLS]` starts a text, so that the model also predicts the first word, and
    `[SEP]` ends it, also where the text is truncated.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The length T of all sequences.
        **kwargs: as in `keras_hub.models.CausalLMPreprocessor`:
            `add_start_token`, `add_end_token`.

    Call arguments:
        x: a string, or a list or tensor of B strings.
        sequence_length: int or `None`. Replaces the preprocessor's length.

    Returns:
        `(x, y, sample_weight)`: a dictionary of tensors `[B, T]`, `token_ids`
        and `padding_mask` (1 = real token); the ids of the next tokens,
        `[B, T]`; and 1 where there is a next token.

    `generate_preprocess` returns prompts: the same without `[SEP]` and labels.
    `generate_postprocess` returns texts without special tokens (including
    `[UNK]`) and with a space between words and punctuation.
    """

    def __init__(self, tokenizer, sequence_length=256, **kwargs):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
