"""The WordPiece vocabulary: learned from text, or read from a file."""

import os
import pathlib
from collections.abc import Sequence

from keras_fixedhead.files import replaced

# TensorFlow and `keras_fixedhead`, which brings it, are imported where they are
# used: a process that hands the work to another does without them.

# Rarer words tell nothing about sub-words and cost most of the time.
_MIN_WORD_COUNT = 3
_MAX_LETTERS = 1_000
_BATCH_SIZE = 256


def learn_vocabulary(
    texts: Sequence[str | bytes], vocabulary_size: int, lowercase: bool
) -> list[str]:
    """Learns a WordPiece vocabulary with tensorflow-text.

    The texts are divided into words as `FixedHeadTokenizer` divides them.

    Args:
        texts: The texts to learn from.
        vocabulary_size: The most tokens; a small corpus gives fewer.
        lowercase: Whether the tokenizer will lower-case and strip accents.

    Returns:
        The special tokens, then all letters of the texts (of more than 1,000
        the most frequent), then the sub-words by their frequency.

    Raises:
        ValueError: `texts` hold no word, or more letters than
            `vocabulary_size` has room for.
    """
    import tensorflow as tf
    from tensorflow_text.tools.wordpiece_vocab import (
        wordpiece_tokenizer_learner_lib as learner,
    )

    from keras_fixedhead import graph_text
    from keras_fixedhead.tokenizer import SPECIAL_TOKENS

    words = (
        tf.data.Dataset.from_tensor_slices(list(texts))
        .batch(_BATCH_SIZE)
        .map(
            lambda text: graph_text.words(text, lowercase),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .filter(lambda words: tf.size(words.flat_values) > 0)
    )
    try:
        counts = learner.count_words(words)
    except StopIteration:
        raise ValueError(
            "there must be words to learn a vocabulary from, in what is not "
            f"held out. Received: {len(texts)} texts without any"
        ) from None
    frequent = {
        word: count
        for word, count in counts.items()
        if count >= _MIN_WORD_COUNT
    }
    # The learner keeps the letters of the words it is given: one word of each
    # letter keeps those of the rare words.
    letters = {letter: 1 for word in counts for letter in word}
    least = len(SPECIAL_TOKENS) + min(len(letters), _MAX_LETTERS)
    if vocabulary_size < least:
        raise ValueError(
            f"`vocabulary_size` must be at least {least}, for special tokens "
            f"and letters. Received: {vocabulary_size}"
        )
    # The search is for the frequency from which on a sub-word is a token.
    # That of the last whole word that fits is near it; a search from the top,
    # as the learner does by itself, takes ten times longer.
    ranked = sorted(frequent.values(), reverse=True)
    near = ranked[:vocabulary_size][-1] if ranked else 1
    tokens = learner.learn(
        letters | frequent,
        vocabulary_size,
        list(SPECIAL_TOKENS),
        lower_thresh=2,
        upper_thresh=10 * near,
        max_unique_chars=_MAX_LETTERS,
    )
    # It stops at the nearest frequency, which may give too many. The letters
    # that go on with a word ("##s") are rare by themselves and yet what the
    # words that are no tokens are made of: they stay while there is room.
    if len(tokens) > vocabulary_size:
        pieces = [
            token
            for token in tokens[len(SPECIAL_TOKENS) :]
            if len(token.removeprefix("##")) > 1
        ]
        dropped = set(pieces[vocabulary_size - len(tokens) :])
        tokens = [token for token in tokens if token not in dropped]
    return tokens[:vocabulary_size]


def read_vocabulary(path: str | os.PathLike) -> list[str]:
    """Reads a vocabulary of one token a line and checks it.

    Raises:
        ValueError: Names the file and what is wrong with it: a special
            token is missing, or a line is no token or repeats one.
    """
    from keras_fixedhead.tokenizer import SPECIAL_TOKENS

    with open(path, encoding="utf-8") as stream:
        tokens = [line.rstrip("\n") for line in stream]
    lines: dict[str, int] = {}
    for number, token in enumerate(tokens, start=1):
        if token.split() != [token]:
            raise ValueError(
                f"{path}:{number}: a token must be a word without whitespace. "
                f"Received: {token!r}"
            )
        if token in lines:
            raise ValueError(
                f"{path}:{number}: a token must stand there once; {token!r} "
                f"is on line {lines[token]} too."
            )
        lines[token] = number
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        raise ValueError(
            f"{path}: a vocabulary must hold {', '.join(SPECIAL_TOKENS)}. "
            f"Missing: {', '.join(missing)}"
        )
    return tokens


def write_vocabulary(path: str | os.PathLike, tokens: Sequence[str]) -> None:
    """Writes a vocabulary, one token a line, as `read_vocabulary` reads it."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{token}\n" for token in tokens)


def make_vocabulary(
    path: pathlib.Path,
    given: pathlib.Path | None,
    sample: pathlib.Path,
    vocabulary_size: int,
    lowercase: bool,
) -> None:
    """Writes the vocabulary at `given`, or one learned from `sample`.

    Args:
        path: Where to.
        given: A vocabulary, or None.
        sample: Lines of text.
        vocabulary_size: See `learn_vocabulary`.
        lowercase: See `learn_vocabulary`.

    Raises:
        OSError, ValueError: See `read_vocabulary` and `learn_vocabulary`.
    """
    if given is None:
        tokens = learn_vocabulary(
            sample.read_bytes().split(b"\n"), vocabulary_size, lowercase
        )
    else:
        tokens = read_vocabulary(given)
    with replaced(path) as partial:
        write_vocabulary(partial, tokens)
