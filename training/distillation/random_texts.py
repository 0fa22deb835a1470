"""Texts of random words, which have the tokens that other texts lack."""

from collections.abc import Sequence

import numpy as np

_WORDS = 2, 10  # the least and the most in a text
_LONGER = 0.15  # fraction of words with one or two further pieces


def random_texts(
    vocabulary: Sequence[str], count: int, suffix_indicator: str = "##"
) -> list[str]:
    """Returns texts of 2 to 10 words of a WordPiece vocabulary.

    All words are equally likely, and so are the pieces of the longer words. The
    same arguments give the same texts.
    """
    words = [token for token in vocabulary if token.isalnum()]
    pieces = [
        piece
        for token in vocabulary
        if token.startswith(suffix_indicator)
        and (piece := token.removeprefix(suffix_indicator)).isalnum()
    ]
    if not words:
        raise ValueError(
            "`vocabulary` has no word of letters and digits to draw from. "
            f"Received: {list(vocabulary[:10])}"
        )
    rng = np.random.default_rng(0)

    def one_of(tokens):
        return tokens[rng.integers(len(tokens))]

    def word():
        longer = pieces and rng.random() < _LONGER
        added = rng.integers(1, 3) if longer else 0
        return one_of(words) + "".join(one_of(pieces) for _ in range(added))

    return [
        " ".join(word() for _ in range(rng.integers(*_WORDS, endpoint=True)))
        for _ in range(count)
    ]
