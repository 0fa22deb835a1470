"""Checks of requests that clients send by mistake, or to do harm."""

import numpy as np

from export import messages, session
from export.checks.exported import Exported, Failure
from export.files import golden

_INVALID = messages.error_codes_pb2.INVALID_ARGUMENT
_HOSTILE_ROWS = 3
_LARGEST_INT32 = 2**31 - 1
_NEIGHBOR = b"Return the sum of two numbers."


def _texts(*items):
    return np.array(items, dtype=object)


def _text_signatures(exported):
    """Returns `{name: inputs}` of the signatures whose inputs are all texts."""
    return {
        name: list(signature.inputs)
        for name, signature in exported.signatures.items()
        if all(
            tensor.dtype == messages.types_pb2.DT_STRING
            for tensor in signature.inputs.values()
        )
    }


def _check_refused(exported, name, inputs):
    try:
        exported.ask(name, inputs)
    except session.StatusError as error:
        if error.code != _INVALID:
            raise Failure(f"{name} refused with {error}") from error
    else:
        raise Failure(f"{name} answers instead of refusing")


def _check_text_refused(exported, text):
    for name, inputs in _text_signatures(exported).items():
        _check_refused(exported, name, dict.fromkeys(inputs, text))
    return "refused as INVALID_ARGUMENT"


def _check_answered(exported, *texts):
    """Checks that texts are answered, and do not change their neighbor."""
    batch = _texts(_NEIGHBOR, *texts)
    for name, inputs in _text_signatures(exported).items():
        expected = exported.ask(name, dict.fromkeys(inputs, batch[:1]))
        answers = exported.ask(name, dict.fromkeys(inputs, batch))
        for output, array in answers.items():
            if array.shape[:1] != batch.shape:
                raise Failure(f"{name}: {output} has shape {array.shape}")
            if array.dtype.kind != "f":
                continue
            wanted = expected[output][:1]
            found = array[:1]
            if wanted.ndim > 1:
                found = found[:, : wanted.shape[1]]
            difference = np.abs(found - wanted).max(initial=0.0)
            # Matrices of other sizes round differently.
            most = 2 * golden.TOLERANCES[exported.dtype] * golden.scale(wanted)
            if not difference <= most:
                raise Failure(f"{name}: {output} depends on the texts beside")
    return "answered"


def check_scalar_text(exported: Exported) -> str:
    """A single text, which REST's `"inputs": "..."` sends, is refused."""
    return _check_text_refused(exported, np.array(b"text", dtype=object))


def check_nested_text(exported: Exported) -> str:
    """A list of lists of texts is refused."""
    return _check_text_refused(exported, _texts([b"text"]))


def check_empty_batch(exported: Exported) -> str:
    """A request without rows has an answer without rows."""
    for name, case in exported.golden.cases.items():
        none = {key: array[:0] for key, array in case.inputs.items()}
        for output, array in exported.ask(name, none).items():
            if len(array):
                raise Failure(f"{name}: {output} has shape {array.shape}")
    return "answered"


def check_empty_text(exported: Exported) -> str:
    """Empty texts have finite answers."""
    return _check_answered(exported, b"", b"")


def check_long_text(exported: Exported) -> str:
    """A text of a megabyte is cut, and answered."""
    return _check_answered(exported, b"word " * 200_000, b"w" * 1_000_000)


def check_invalid_utf8(exported: Exported) -> str:
    """Bytes that are not UTF-8 are answered."""
    return _check_answered(
        exported, b"\xff\xfe\x80", b"\xc3", b"ok \xed\xa0\x80"
    )


def check_unlike_numbers(exported: Exported) -> str:
    """A signature of pairs refuses two texts for one."""
    tried = 0
    for name, (first, *others) in _text_signatures(exported).items():
        if others:
            tried += 1
            inputs = dict.fromkeys(others, _texts(b"a"))
            inputs[first] = _texts(b"a", b"b")
            _check_refused(exported, name, inputs)
    return "refused as INVALID_ARGUMENT" if tried else "no signature of pairs"


def check_wrong_ids(exported: Exported) -> str:
    """Ids, lengths and shapes beyond the model's tables are refused."""
    tried = 0
    for name, case in exported.golden.cases.items():
        if "token_ids" not in case.inputs:
            continue
        inputs = {
            key: array[:_HOSTILE_ROWS] for key, array in case.inputs.items()
        }
        size = exported.fact("vocabulary_size", int, _LARGEST_INT32)
        segments = exported.fact("num_segments", int, _LARGEST_INT32)
        longest = exported.fact("max_sequence_length", int, 2**24)
        width = inputs["token_ids"].shape[1]
        long = [(0, 0), (0, longest + 1 - width)]
        for hostile in (
            _with_last(inputs, "token_ids", -1),
            _with_last(inputs, "token_ids", size),
            _with_last(inputs, "token_ids", _LARGEST_INT32),
            _with_last(inputs, "segment_ids", -1),
            _with_last(inputs, "segment_ids", segments),
            _with_last(inputs, "padding_mask", 2),
            {**inputs, "padding_mask": inputs["padding_mask"][:, :-1]},
            {key: np.pad(array, long) for key, array in inputs.items()},
            {key: array[0] for key, array in inputs.items()},
            {key: array[0, 0] for key, array in inputs.items()},
            {key: array[None] for key, array in inputs.items()},
        ):
            tried += 1
            _check_refused(exported, name, hostile)
    if not tried:
        return "no signature takes ids"
    return f"{tried} requests refused as INVALID_ARGUMENT"


def _with_last(inputs, name, value):
    """Replaces the last id of an input `[B, T]`."""
    ids = inputs[name].copy()
    ids[-1, -1] = value
    return {**inputs, name: ids}
