"""Texts in which random words stand for some of their words."""

import random

from keras_fixedhead import FixedHeadTokenizer
from training.engine.configs import check_fraction


class RandomWords:
    """Replaces a fraction of the words of every second text.

    A model that is fitted to such texts also fits words and contexts that the
    texts lack, as those of other domains do. A random word is a whole word of
    the vocabulary, perhaps with word pieces behind it. The same text and seed
    give the same result.
    """

    def __init__(
        self, tokenizer: FixedHeadTokenizer, fraction: float, seed: int
    ):
        check_fraction(random_words=fraction)
        self._fraction, self._seed = fraction, seed
        tokens = tokenizer.get_vocabulary()
        self._words = [t for t in tokens if len(t) > 2 and t.isalpha()]
        # [UNK] and the like are not alphabetic.
        self._ends = [
            t[2:] for t in tokens if t.startswith("##") and t[2:].isalpha()
        ]
        if fraction and not self._words:
            raise ValueError(
                "`random_words` must be 0 for a vocabulary without whole "
                f"words of three letters. Received: {fraction}"
            )

    def __call__(self, text: str) -> str:
        rng = random.Random(f"{self._seed} {text}")
        if rng.random() < 0.5:
            return text
        return " ".join(
            self._random_word(rng) if rng.random() < self._fraction else word
            for word in text.split()
        )

    def _random_word(self, rng):
        ends = rng.choice((0, 0, 0, 1, 1, 2)) if self._ends else 0
        pieces = (rng.choice(self._ends) for _ in range(ends))
        return rng.choice(self._words) + "".join(pieces)
