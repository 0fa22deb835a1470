"""What the gate asks a served model, with the Keras model's answers.

Shape letters: N rows, T tokens.
"""

import numpy as np

from export import session
from export.checks import tolerance
from export.files import golden
from export.services import cover
from export.services.service import TOKEN_IDS_SIGNATURE

_ROWS = 32  # that the Keras model answers at once
_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


def golden_cases(service, on_start=lambda what: None):
    """Returns `{signature: golden.Case}` for those of `signatures`.

    `serving_default` and `from_token_ids` are asked for every entry of the
    vocabulary; all text signatures share one tokenizer.

    Args:
        service: a `Service`.
        on_start: function called with what begins, a str, for a display.
    """
    backbone, preprocessor = service.backbone, service.preprocessor
    cases = {}
    for name, signature in service.texts.items():
        texts = {n: list(column) for n, column in signature.golden.items()}
        if name == session.DEFAULT_SIGNATURE:
            room = preprocessor.sequence_length - _SPECIAL_TOKENS
            *others, last = texts
            more = cover.texts(preprocessor.tokenizer, room)
            texts[last] += more
            for other in others:
                texts[other] += [golden.TEXTS[3]] * len(more)

        def of_texts(rows, signature=signature):
            return signature.padded(*(list(map(str, x)) for x in rows.values()))

        cases[name] = _answered(
            service,
            {n: np.array(column) for n, column in texts.items()},
            of_texts,
            lambda done, name=name: on_start(f"golden answers, {name}: {done}"),
        )
    ids = cover.token_id_rows(
        backbone.vocabulary_size,
        backbone.max_sequence_length,
        backbone.num_segments,
        backbone.causal,
    )
    for name, rows in service.golden_ids().items():
        width = [(0, 0), (0, backbone.max_sequence_length - rows.shape[1])]
        ids[name] = np.concatenate([np.pad(rows, width), ids[name]])

    cases[TOKEN_IDS_SIGNATURE] = _answered(
        service,
        ids,
        lambda rows: service.padded(golden.trimmed(rows)),
        lambda done: on_start(f"golden answers, from_token_ids: {done}"),
    )
    return cases


def _answered(service, inputs, padded, on_start):
    """Builds the `golden.Case` of inputs, `{name: array [N, ...]}`.

    Where the best and the next best are closer than the gate's tolerance, a
    sound export may choose the other one: that row is undecided.
    """
    count = len(next(iter(inputs.values())))
    outputs, margins = {}, []
    for start in range(0, count, _ROWS):
        on_start(f"{start} of {count}")
        rows = {n: array[start : start + _ROWS] for n, array in inputs.items()}
        answers = padded(rows)
        for name, array in answers.outputs.items():
            outputs.setdefault(name, []).append(golden.condense(array))
        if answers.margin is not None:
            margins.append(answers.margin)
    outputs = {name: _stack(arrays) for name, arrays in outputs.items()}
    decided = np.ones(count, bool)
    if margins:
        least = tolerance.TOLERANCES[service.dtype] * tolerance.scale(outputs)
        margins = np.concatenate(margins)
        decided = margins > 2 * least
        decided[np.argmax(margins)] = True
    return golden.Case(inputs, outputs, decided)


def _stack(arrays):
    """Concatenates rows; those of tokens, `[N, T]`, at the largest T."""
    if arrays[0].ndim < 2:
        return np.concatenate(arrays)
    longest = max(array.shape[1] for array in arrays)
    return np.concatenate(
        [
            np.pad(array, [(0, 0), (0, longest - array.shape[1])])
            for array in arrays
        ]
    )
