"""Golden rows that use every entry of a vocabulary, in rows of many lengths.

Shape letters: N rows, T tokens.
"""

import numpy as np

# Rows of these lengths, and of the longest, come first; then full ones.
_LENGTHS = (1, 2, 3, 5, 17)
_FULL = 128
# What a token that continues a word is tried after.
_MOST_PREFIXES = 40


def _lengths(longest):
    """Yields how many tokens each row has, without end."""
    yield from (longest, max(longest - 1, 1), max(longest // 2, 1))
    yield from (length for length in _LENGTHS if length < longest)
    while True:
        yield min(longest, _FULL)


def token_id_rows(vocabulary_size, longest, num_segments, causal):
    """Returns a model's inputs that have every id at least once.

    Args:
        vocabulary_size: int.
        longest: int, the length of the position table.
        num_segments: int; in every other row the second half is of the last.
        causal: bool. Causal models take one segment, padded at its end; others
            also get padding between tokens.

    Returns:
        `{name: int32 array [N, T]}` with T = `longest`; ids at padding are not
        zero.
    """
    rows, start = [], 0
    for length in _lengths(longest):
        rows.append(np.arange(start, start + length) % vocabulary_size)
        start += length
        if start >= vocabulary_size and len(rows) > 3 + len(_LENGTHS):
            break
    rows.append(np.full(longest, vocabulary_size - 1))
    shape = len(rows), longest
    token_ids = np.full(shape, vocabulary_size - 1, "int32")
    padding_mask, segment_ids = (
        np.zeros(shape, "int32"),
        np.zeros(shape, "int32"),
    )
    for index, row in enumerate(rows):
        token_ids[index, : len(row)] = row
        padding_mask[index, : len(row)] = 1
        if index % 2 and not causal:
            segment_ids[index, len(row) // 2 : len(row)] = num_segments - 1
    if not causal:
        padding_mask[-1, 1::2] = 0
    return {
        "token_ids": token_ids,
        "padding_mask": padding_mask,
        "segment_ids": segment_ids,
    }


def texts(tokenizer, longest):
    """Returns texts that have every token that a text can have, but for few.

    A token that continues a word, such as `##ing`, is left out if it follows
    none of the first single characters of the vocabulary.

    Args:
        tokenizer: a `FixedHeadTokenizer`.
        longest: int, the most tokens of a text.

    Returns:
        A list of str.
    """
    lengths, found = _lengths(longest), []
    room, text = 0, []
    for word, count in _words(tokenizer):
        if count > room and text:
            found.append(" ".join(text))
            text = []
        if not text:
            room = next(lengths)
        text.append(word)
        room -= count
    found.append(" ".join(text))
    return found


def _words(tokenizer):
    """Returns words that have every token, each with its number of tokens."""
    vocabulary = tokenizer.get_vocabulary()
    mark = tokenizer.suffix_indicator
    missing = set(range(len(vocabulary)))
    chosen = []

    def take(words):
        for word, ids in zip(words, tokenizer(words)):
            if not missing.isdisjoint(ids):
                missing.difference_update(ids)
                chosen.append((word, len(ids)))

    take([token for token in vocabulary if not token.startswith(mark)])
    prefixes = [t for t in vocabulary if len(t) == 1 and t.isalnum()]
    for prefix in prefixes[:_MOST_PREFIXES]:
        ends = [vocabulary[i].removeprefix(mark) for i in sorted(missing)]
        if ends:
            take([prefix + end for end in ends])
    return chosen
