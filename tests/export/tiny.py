"""Tiny models of real words, with primes for sizes."""

import keras
import numpy as np

import keras_fixedhead

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    "the of to return sum two number file read line by ##ing open ##er "
    "quick brown fox jump ##ed over lazy dog query , . : # ( ) é 西 σ"
).split()
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
]


def _new_backbone(tokenizer, unused=0, **options):
    return keras_fixedhead.FixedHeadBackbone(
        vocabulary_size=tokenizer.vocabulary_size() + unused,
        num_layers=1,
        num_heads=3,
        hidden_dim=13,
        intermediate_dim=31,
        head_size=7,
        max_sequence_length=37,
        **options,
    )


def new_embedder(
    vocabulary=VOCABULARY,
    prompts=None,
    pooler=False,
    special_tokens_in_strings=False,
    **options,
):
    """Builds an embedder with primes for sizes and random weights."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(
        vocabulary, special_tokens_in_strings=special_tokens_in_strings
    )
    return keras_fixedhead.FixedHeadTextEmbedder(
        _new_backbone(tokenizer, pooler=pooler),
        keras_fixedhead.FixedHeadTextEmbedderPreprocessor(
            tokenizer, sequence_length=29, prompts=prompts
        ),
        **options,
    )


def new_text_classifier(labels=None, pooler=True):
    """Builds a classifier of three classes with random weights."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(VOCABULARY)
    return keras_fixedhead.FixedHeadTextClassifier(
        _new_backbone(tokenizer, pooler=pooler),
        num_classes=3,
        preprocessor=keras_fixedhead.FixedHeadTextClassifierPreprocessor(
            tokenizer, sequence_length=29
        ),
        labels=labels,
    )


def new_token_classifier(labels=None):
    """Builds a token classifier of three classes with random weights."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(VOCABULARY)
    return keras_fixedhead.FixedHeadTokenClassifier(
        _new_backbone(tokenizer),
        num_classes=3,
        preprocessor=keras_fixedhead.FixedHeadTokenClassifierPreprocessor(
            tokenizer, sequence_length=29
        ),
        labels=labels,
    )


def new_causal_lm(**options):
    """Builds a language model whose next token depends on all before it."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(VOCABULARY)
    model = keras_fixedhead.FixedHeadCausalLM(
        _new_backbone(tokenizer, causal=True, **options),
        keras_fixedhead.FixedHeadCausalLMPreprocessor(
            tokenizer, sequence_length=29
        ),
    )
    rng = np.random.default_rng(11)
    for variable in model.trainable_variables:
        # Where a token stands counts most, or it would follow itself.
        more = 5 if "position_embedding" in variable.path else 1
        drawn = rng.normal(size=variable.shape).astype("float32")
        variable.assign(variable + more * drawn)
    # [SEP] is probable, too, in some places.
    table = model.backbone.token_embedding.embeddings
    end = np.random.default_rng(22).normal(size=13)
    values = keras.ops.convert_to_numpy(table).copy()
    values[tokenizer.end_token_id] = 8 * end / np.linalg.norm(end)
    table.assign(values)
    return model


def new_labeler():
    """Builds a span labeler with random weights; a window is soon full."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(VOCABULARY)
    return keras_fixedhead.FixedHeadSpanLabeler(
        _new_backbone(tokenizer),
        keras_fixedhead.FixedHeadSpanLabelerPreprocessor(
            tokenizer,
            sequence_length=29,
            document_stride=5,
            max_question_length=7,
        ),
    )
