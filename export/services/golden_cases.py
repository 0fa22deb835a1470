"""The requests that the gate makes, with the Keras model's answers.

They use every entry of the vocabulary, in rows of many lengths.

Shape letters: N rows, T tokens.
"""

from collections.abc import Callable, Iterator

import numpy as np

from export import session
from export.files import golden
from export.services.service import TOKEN_IDS_SIGNATURE, Service

_ROWS = 32  # that the Keras model answers at once
_SPECIAL_TOKENS = 2  # [CLS] and [SEP]
# Rows of these lengths, and the longest ones, come first; then full ones.
_LENGTHS = (1, 2, 3, 5, 17)
_FULL = 128
_MOST_PREFIXES = 40  # to try before a token that continues a word


def golden_cases(
    service: Service, on_start: Callable[[str], None] = lambda what: None
) -> dict[str, golden.Case]:
    """Answers the golden requests to every signature.

    Only `serving_default` and `from_token_ids` get the whole vocabulary, as all
    text signatures share one tokenizer.
    """
    backbone, preprocessor = service.backbone, service.preprocessor
    cases = {}

    def add(name, inputs, padded):
        def tell(done):
            on_start(f"golden answers, {name}: {done}")

        cases[name] = _answered(service, inputs, padded, tell)

    for name, signature in service.texts.items():
        texts = {n: list(column) for n, column in signature.golden.items()}
        if name == session.DEFAULT_SIGNATURE:
            room = preprocessor.sequence_length - _SPECIAL_TOKENS
            *others, last = texts
            more = _texts(preprocessor.tokenizer, room)
            texts[last] += more
            for other in others:
                texts[other] += [golden.TEXTS[3]] * len(more)

        def of_texts(rows, signature=signature):
            return signature.padded(*(list(map(str, x)) for x in rows.values()))

        add(name, {n: np.array(x) for n, x in texts.items()}, of_texts)
    ids = _token_id_rows(
        backbone.vocabulary_size,
        backbone.max_sequence_length,
        backbone.num_segments,
        backbone.causal,
    )
    for name, rows in service.golden_ids().items():
        width = [(0, 0), (0, backbone.max_sequence_length - rows.shape[1])]
        ids[name] = np.concatenate([np.pad(rows, width), ids[name]])
    add(
        TOKEN_IDS_SIGNATURE,
        ids,
        lambda rows: service.padded(golden.trimmed(rows)),
    )
    return cases


def _answered(service, inputs, padded, tell):
    """Builds the `golden.Case` of inputs, arrays `[N, ...]`.

    If the best two answers of a row are closer than the gate's tolerance, a
    sound export may choose either: the row is undecided.
    """
    count = len(next(iter(inputs.values())))
    outputs, margins = {}, []
    for start in range(0, count, _ROWS):
        tell(f"{start} of {count}")
        rows = {n: array[start : start + _ROWS] for n, array in inputs.items()}
        answers = padded(rows)
        for name, array in answers.outputs.items():
            outputs.setdefault(name, []).append(golden.condense(array))
        if answers.margin is not None:
            margins.append(answers.margin)
    outputs = {name: _stack(arrays) for name, arrays in outputs.items()}
    decided = np.ones(count, bool)
    if margins:
        scale = golden.scale(*outputs.values())
        least = golden.TOLERANCES[service.dtype] * scale
        margins = np.concatenate(margins)
        decided = margins > 2 * least
        decided[np.argmax(margins)] = True
    return golden.Case(inputs, outputs, decided)


def _stack(arrays):
    """Concatenates rows, `[N, T]` padded to the largest T."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    dtype = np.result_type(*arrays)
    shape = sum(map(len, arrays)), max(array.shape[1] for array in arrays)
    stacked, start = np.zeros(shape, dtype), 0
    for array in arrays:
        end = start + len(array)
        stacked[start:end, : array.shape[1]] = array
        start = end
    return stacked


def _lengths(longest: int) -> Iterator[int]:
    """Yields how many tokens each row has, without end."""
    yield from (longest, max(longest - 1, 1), max(longest // 2, 1))
    yield from (length for length in _LENGTHS if length < longest)
    while True:
        yield min(longest, _FULL)


def _token_id_rows(vocabulary_size, longest, num_segments, causal):
    """Returns a model's inputs, int32 `[N, longest]`, that have every id.

    Ids at padding are not zero. The second half of every other row is of the
    last segment. Causal models take one segment, padded at its end; others also
    get padding between tokens.
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
    padding_mask = np.zeros(shape, "int32")
    segment_ids = np.zeros(shape, "int32")
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


def _texts(tokenizer, longest):
    """Returns texts of at most `longest` tokens that have nearly every token.

    A token that continues a word, such as `##ing`, is missing if it follows
    none of the first single characters of the vocabulary.
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
