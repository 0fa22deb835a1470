"""A tiny embedder of real words, with primes for sizes."""

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


def new_embedder(vocabulary=VOCABULARY, prompts=None, pooler=False, **options):
    """Builds an embedder with primes for sizes and random weights."""
    keras.utils.set_random_seed(11)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(vocabulary)
    return keras_fixedhead.FixedHeadTextEmbedder(
        keras_fixedhead.FixedHeadBackbone(
            vocabulary_size=tokenizer.vocabulary_size(),
            num_layers=1,
            num_heads=3,
            hidden_dim=13,
            intermediate_dim=31,
            head_size=7,
            max_sequence_length=37,
            pooler=pooler,
        ),
        keras_fixedhead.FixedHeadTextEmbedderPreprocessor(
            tokenizer, sequence_length=29, prompts=prompts
        ),
        **options,
    )
