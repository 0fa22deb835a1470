"""From texts to the inputs and labels of a `FixedHeadMaskedLM`."""

import keras
import keras_hub

from keras_fixedhead.preprocessor import FixedHeadPreprocessor


@keras.saving.register_keras_serializable(package="keras_fixedhead")
class FixedHeadMaskedLMPreprocessor(
    FixedHeadPreprocessor, keras_hub.models.MaskedLMPreprocessor
):
    """Tokenizes, packs one or two segments and masks some of their tokens.

    For `FixedHeadMaskedLM.fit` on texts.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        sequence_length: int. The length T of all sequences.
        **kwargs: as in `keras_hub.models.MaskedLMPreprocessor`:
            `mask_selection_rate`, `mask_selection_length`,
            `mask_token_rate`, `random_token_rate`, `truncate`.

    Call arguments:
        x: a string, a list or tensor of B strings, or a tuple of these for
            sequences of several segments. Pass `y=None` with a tuple of two,
            which KerasHub otherwise takes for inputs and labels.

    Returns:
        `(x, y, sample_weight)` as in
        `keras_hub.models.MaskedLMPreprocessor`: a dictionary of int tensors,
        the ids of the masked tokens, and 1 where a token is masked.
    """
