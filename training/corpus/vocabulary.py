"""The WordPiece vocabulary: learned from text, or read from a file."""

import os
import pathlib
from collections.abc import Sequence

import tensorflow as tf
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from keras_fixedhead import FixedHeadTokenizer, graph_text
from keras_fixedhead.convert import bert_files
from keras_fixedhead.tokenizer import SPECIAL_TOKENS

# Rarer words tell nothing about sub-words and cost most of the time.
_MIN_WORD_COUNT = 3
_MAX_LETTERS = 1_000
_BATCH_SIZE = 256


def learn_vocabulary(
    texts: Sequence[str | bytes], vocabulary_size: int, lowercase: bool
) -> list[str]:
    """Learns a WordPiece vocabulary of at most `vocabulary_size` tokens.

    They are the special tokens, then all letters of the texts (or the 1,000
    most frequent), then sub-words of `FixedHeadTokenizer`'s words by frequency.
    """
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
    # The learner keeps the letters of its words, so give it each letter as a
    # word to keep those of rare words.
    letters = {letter: 1 for word in counts for letter in word}
    least = len(SPECIAL_TOKENS) + min(len(letters), _MAX_LETTERS)
    if vocabulary_size < least:
        raise ValueError(
            f"`vocabulary_size` must be at least {least}, for special tokens "
            f"and letters. Received: {vocabulary_size}"
        )
    # The learner searches for the least frequency of a token. Start near the
    # frequency of the last whole word that fits: from the top, as by default,
    # the search takes ten times longer.
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
    # It stops at the nearest frequency, which may give too many tokens. Drop
    # whole pieces before letters ("##s"), which are rare by themselves but
    # spell the words that are no tokens.
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
    """Reads and checks a vocabulary of one token a line."""
    tokens = bert_files.read_vocabulary(pathlib.Path(path))
    for number, token in enumerate(tokens, start=1):
        if token.split() != [token]:
            raise ValueError(
                f"{path}:{number}: a token must be a word without whitespace. "
                f"Received: {token!r}"
            )
    try:
        FixedHeadTokenizer(tokens)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: {reason}") from error
    return tokens


def write_vocabulary(path: str | os.PathLike, tokens: Sequence[str]) -> None:
    """Writes a vocabulary as `read_vocabulary` reads it."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{token}\n" for token in tokens)
