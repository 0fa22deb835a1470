"""Which characters of a text its tokens come from.

Normalization removes characters and makes several of one. It does so character
by character, so that the lengths of what becomes of each add up to the length
of the whole; only which letter a final sigma becomes depends on its neighbours.
"""

import functools
import unicodedata


class Offsets:
    """From spans of a normalized text to spans of the original.

    Args:
        text: str. The original.
        normalize: function from a string to its normalized form. The lengths
            of its results add up over characters. It is called once for each
            different character, and has to be hashable.

    Attributes:
        length: int. The length of the normalized text.
    """

    def __init__(self, text, normalize):
        self._text = text
        widths = [_width(normalize, character) for character in text]
        self._widths = widths
        # For each normalized character its place in the original.
        self._places = [
            place for place, width in enumerate(widths) for _ in range(width)
        ]
        self.length = len(self._places)

    def span(self, start, end):
        """The original of some normalized characters.

        Args:
            start: int. The first of them.
            end: int, over `start`. After the last of them.

        Returns:
            `(start, end)`, ints, in the original. Accents that were removed
            from the last character belong to it.
        """
        first, after = self._places[start], self._places[end - 1] + 1
        while after < len(self._text) and self._is_removed_accent(after):
            after += 1
        return first, after

    def _is_removed_accent(self, place):
        return (
            not self._widths[place]
            and unicodedata.category(self._text[place]) == "Mn"
        )


@functools.lru_cache(maxsize=1 << 16)
def _width(normalize, character):
    return len(normalize(character))
