"""Tiny models of real words, with primes for sizes."""

import keras
import numpy as np

import keras_fixedhead
from tests import tiny_models

WORDS = (
    "the of to return sum two number file read line by ##ing open ##er "
    "quick brown fox jump ##ed over lazy dog query , . : # ( ) é 西 σ"
).split()
VOCABULARY = tiny_models.new_vocabulary(WORDS)
SIZES = {
    "num_layers": 1,
    "hidden_dim": 13,
    "intermediate_dim": 31,
    "max_sequence_length": 37,
}


def _new_task(
    cls, vocabulary=VOCABULARY, backbone=None, preprocessor=None, **options
):
    keras.utils.set_random_seed(11)
    return tiny_models.new_task(
        cls,
        vocabulary,
        backbone={**SIZES, **(backbone or {})},
        preprocessor={"sequence_length": 29, **(preprocessor or {})},
        **options,
    )


def new_embedder(
    vocabulary=VOCABULARY,
    prompts=None,
    pooler=False,
    special_tokens_in_strings=False,
    **options,
):
    return _new_task(
        keras_fixedhead.FixedHeadTextEmbedder,
        vocabulary,
        backbone={"pooler": pooler},
        preprocessor={"prompts": prompts},
        tokenizer={"special_tokens_in_strings": special_tokens_in_strings},
        **options,
    )


def new_text_classifier(labels=None, pooler=True):
    return _new_task(
        keras_fixedhead.FixedHeadTextClassifier,
        backbone={"pooler": pooler},
        num_classes=3,
        labels=labels,
    )


def new_token_classifier(labels=None):
    return _new_task(
        keras_fixedhead.FixedHeadTokenClassifier, num_classes=3, labels=labels
    )


def new_causal_lm(unused=0, **options):
    """A language model whose next token depends on all before it.

    Its vocabulary has `unused` more ids than its tokenizer.
    """
    size = len(VOCABULARY) + unused
    model = _new_task(
        keras_fixedhead.FixedHeadCausalLM,
        backbone={"causal": True, "vocabulary_size": size, **options},
    )
    tiny_models.add_noise(model, scale=1.0, positions=5.0, seed=11)
    # [SEP] is probable, too, in some places.
    table = model.backbone.token_embedding.embeddings
    end = np.random.default_rng(22).normal(size=13)
    values = keras.ops.convert_to_numpy(table).copy()
    end_token_id = model.preprocessor.tokenizer.end_token_id
    values[end_token_id] = 8 * end / np.linalg.norm(end)
    table.assign(values)
    return model


def new_labeler(**sizes):
    """A span labeler whose windows are soon full."""
    return _new_task(
        keras_fixedhead.FixedHeadSpanLabeler,
        backbone=sizes,
        preprocessor={"document_stride": 5, "max_question_length": 7},
    )
