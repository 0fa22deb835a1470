"""Checks of requests that clients send by mistake, or to do harm."""

import functools

import numpy as np

from export import messages, session
from export.checks.exported import Failure
from export.checks.tolerance import TOLERANCES, scale

_INVALID = messages.error_codes_pb2.INVALID_ARGUMENT
_HOSTILE_ROWS = 3
_NEIGHBOR = b"Return the sum of two numbers."


def _text_signatures(exported):
    """Names of the signatures whose every input is a string."""
    return [
        name
        for name, signature in exported.signatures.items()
        if all(
            tensor.dtype == messages.types_pb2.DT_STRING
            for tensor in signature.inputs.values()
        )
    ]


def _feed_text(exported, name, texts):
    """Feeds the same array as every input of a text signature."""
    inputs = exported.signatures[name].inputs
    return exported.ask(name, dict.fromkeys(inputs, texts))


def _refused(exported, name, ask):
    """Checks that a request is refused as INVALID_ARGUMENT.

    Args:
        name: the signature's name.
        ask: function without arguments that makes the request.
    """
    try:
        ask()
    except session.StatusError as error:
        if error.code != _INVALID:
            raise Failure(f"{name} refused with {error}") from error
    else:
        raise Failure(f"{name} answers instead of refusing")


def _check_refused(exported, texts):
    for name in _text_signatures(exported):
        _refused(
            exported, name, functools.partial(_feed_text, exported, name, texts)
        )
    return "refused as INVALID_ARGUMENT"


def _check_answered(exported, *texts):
    """Checks that texts are answered, and the text beside them as alone."""
    alone = np.array([_NEIGHBOR], dtype=object)
    batch = np.array([_NEIGHBOR, *texts], dtype=object)
    for name in _text_signatures(exported):
        expected = _feed_text(exported, name, alone)
        for output, array in _feed_text(exported, name, batch).items():
            if array.shape[:1] != batch.shape:
                raise Failure(f"{name}: {output} has shape {array.shape}")
            if array.dtype.kind != "f":
                continue
            wanted = expected[output][:1]
            found = (
                array[:1, : wanted.shape[1]] if wanted.ndim > 1 else array[:1]
            )
            difference = np.abs(found - wanted).max(initial=0.0)
            # Products of other sizes round otherwise.
            most = 2 * TOLERANCES[exported.dtype] * scale({output: wanted})
            if not difference <= most:
                raise Failure(f"{name}: {output} depends on the texts beside")
    return "answered"


def check_scalar_text(exported):
    """A text that is no list is refused; REST's `"inputs": "..."` makes it."""
    return _check_refused(exported, np.array(b"text", dtype=object))


def check_nested_text(exported):
    """A list of lists of texts is refused."""
    return _check_refused(exported, np.array([[b"text"]], dtype=object))


def check_empty_batch(exported):
    """No row gives no answer, not an error."""
    for name, case in exported.golden.cases.items():
        none = {key: array[:0] for key, array in case.inputs.items()}
        for output, array in exported.ask(name, none).items():
            if len(array):
                raise Failure(f"{name}: {output} has shape {array.shape}")
    return "answered"


def check_empty_text(exported):
    """Empty texts have finite answers."""
    return _check_answered(exported, b"", b"")


def check_long_text(exported):
    """A text of a megabyte is cut, and answered."""
    return _check_answered(exported, b"word " * 200_000, b"w" * 1_000_000)


def check_invalid_utf8(exported):
    """Bytes that are no UTF-8 are answered."""
    return _check_answered(
        exported, b"\xff\xfe\x80", b"\xc3", b"ok \xed\xa0\x80"
    )


def check_unlike_numbers(exported):
    """Two texts for one are refused where a signature takes pairs."""
    tried = 0
    for name in _text_signatures(exported):
        first, *others = exported.signatures[name].inputs
        if not others:
            continue
        tried += 1
        inputs = dict.fromkeys(others, np.array([b"a"], dtype=object))
        inputs[first] = np.array([b"a", b"b"], dtype=object)
        _refused(exported, name, functools.partial(exported.ask, name, inputs))
    return "refused as INVALID_ARGUMENT" if tried else "no signature of pairs"


def check_wrong_ids(exported):
    """Ids, lengths and shapes that the tables do not have are refused."""
    tried = 0
    for name, case in exported.golden.cases.items():
        if "token_ids" not in case.inputs:
            continue
        inputs = {
            key: array[:_HOSTILE_ROWS] for key, array in case.inputs.items()
        }
        ids, segments = inputs["token_ids"], inputs["segment_ids"]
        size = exported.fact("vocabulary_size", int, 2**31 - 1)
        longest = exported.fact("max_sequence_length", int, 2**24)
        long = [(0, 0), (0, longest + 1 - ids.shape[1])]
        for hostile in (
            {**inputs, "token_ids": _with_last(ids, -1)},
            {**inputs, "token_ids": _with_last(ids, size)},
            {**inputs, "token_ids": _with_last(ids, 2**31 - 1)},
            {**inputs, "segment_ids": _with_last(segments, -1)},
            {
                **inputs,
                "segment_ids": _with_last(
                    segments, exported.fact("num_segments", int, 2**31 - 1)
                ),
            },
            {
                **inputs,
                "padding_mask": _with_last(inputs["padding_mask"], 2),
            },
            {**inputs, "padding_mask": inputs["padding_mask"][:, :-1]},
            {key: np.pad(array, long) for key, array in inputs.items()},
            {key: array[0] for key, array in inputs.items()},
            {key: array[0, 0] for key, array in inputs.items()},
            {key: array[None] for key, array in inputs.items()},
        ):
            tried += 1
            _refused(
                exported, name, functools.partial(exported.ask, name, hostile)
            )
    if not tried:
        return "no signature takes ids"
    return f"{tried} requests refused as INVALID_ARGUMENT"


def _with_last(ids, value):
    """Ids `[B, T]` whose last one is another."""
    ids = ids.copy()
    ids[-1, -1] = value
    return ids
