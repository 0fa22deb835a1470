"""Tiny models of real words, with primes for sizes."""

import keras

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


def _new_backbone(tokenizer, **options):
    return keras_fixedhead.FixedHeadBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=3,
        hidden_dim=13,
        intermediate_dim=31,
        head_size=7,
        max_sequence_length=37,
        **options,
    )


def new_embedder(vocabulary=VOCABULARY, prompts=None, pooler=False, **options):
    """Builds an embedder with primes for sizes and random weights."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(vocabulary)
    return keras_fixedhead.FixedHeadTextEmbedder(
        _new_backbone(tokenizer, pooler=pooler),
        keras_fixedhead.FixedHeadTextEmbedderPreprocessor(
            tokenizer, sequence_length=29, prompts=prompts
        ),
        **options,
    )


def new_classifier(labels=None, pooler=True):
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
