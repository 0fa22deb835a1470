"""Checks that run a loaded export.

It must answer the requests stored in it as the Keras model does, and refuse
those that clients send by mistake, or to do harm.

Shape letters: N golden rows, B batch, T tokens.
"""

import itertools

import numpy as np

from export import messages, session
from export.checks.exported import Exported, Failure
from export.files import digests, golden, warmup

# Sizes beside those of the warm-up: odd, and more than a batching server takes.
_ODD_SIZES = (1, 3, 7, 31, 33, 67)
_IDS = "token_ids"
_INVALID = messages.error_codes_pb2.INVALID_ARGUMENT
_HOSTILE_ROWS = 3
_LARGEST_INT32 = 2**31 - 1
_NEIGHBOR = b"Return the sum of two numbers."


def check_load(exported: Exported) -> str:
    """The C++ loader takes the folder and finds every variable."""
    for name, case in exported.golden.cases.items():
        first = {key: array[:1] for key, array in case.inputs.items()}
        exported.ask(name, first)
    return f"{len(exported.signatures)} signatures"


def check_weights(exported: Exported) -> str:
    """The variables hold the weights of the Keras model, bit by bit."""
    if not exported.is_sealed:
        return "exported before there were digests; not compared"
    found = exported.session.read_variables()
    unread = sorted(exported.variables.keys() - found.keys())
    if unread:
        raise Failure(f"nothing reads the variables {', '.join(unread)}")
    exported.compare(
        "weights_sha256",
        digests.of_weights(found.values()),
        "the variables differ from the Keras model's weights",
    )
    return f"{len(found)} variables"


def check_golden(exported: Exported) -> str:
    """Every signature answers as the Keras model, in batches of many sizes."""
    _check_rows(exported)
    worst = 0.0
    for name, case in exported.golden.cases.items():
        batches = list(_batches(exported, case))
        for number, rows in enumerate(batches):
            exported.tell(f"{name}, batch {number + 1} of {len(batches)}")
            inputs = {key: array[rows] for key, array in case.inputs.items()}
            if _IDS in inputs and number:  # the first has columns of padding
                inputs = golden.trimmed(inputs)
            found = _compare(exported, name, case, rows, inputs)
            worst = max(worst, found)
    return f"largest difference {worst:.1e}"


def _check_rows(exported):
    """Checks that the rows are the exported ones and have every token id."""
    if not exported.is_sealed:
        return
    cases = exported.golden.cases
    exported.compare(
        "golden_sha256",
        digests.of_cases(cases),
        f"{golden.FILE} is not the exported one",
    )
    size = exported.fact("vocabulary_size", int)
    for name, case in cases.items():
        if _IDS in case.inputs:
            found = np.unique(case.inputs[_IDS])
            if (found.size, found[0], found[-1]) != (size, 0, size - 1):
                raise Failure(f"{name}: not every token id is in a row")


def _batches(exported, case):
    """Yields rows, int `[B]`, until it has yielded each size and each row."""
    sizes = {*_ODD_SIZES, *exported.batch_sizes}
    count, start = len(case.decided), 0
    for index, size in enumerate(itertools.cycle(sorted(sizes))):
        if index >= len(sizes) and start >= count:
            return
        yield np.arange(start, start + size) % count
        start += size


def _compare(exported, name, case, rows, inputs):
    """Asks for some rows; returns the largest difference of the answers."""
    answers = exported.ask(name, inputs)
    if answers.keys() != case.outputs.keys():
        raise Failure(
            f"{name} answers {sorted(answers)}, the Keras model "
            f"{sorted(case.outputs)}"
        )
    worst, where = 0.0, f"in a batch of {len(rows)}"
    for output, every in case.outputs.items():
        expected, answer = every[rows], answers[output]
        if answer.ndim > expected.ndim:
            answer = golden.condense(answer)
        if _has_tokens(exported, name, output):
            if _IDS in inputs:
                expected = expected[:, : inputs[_IDS].shape[1]]
            else:
                expected = _trim(expected, answer.shape[1])
        if answer.shape != expected.shape:
            raise Failure(
                f"{name}: {output} has shape {answer.shape}, the Keras "
                f"model's {expected.shape}, {where}"
            )
        if every.dtype.kind != "f":
            decided = case.decided[rows]
            if not np.array_equal(answer[decided], expected[decided]):
                raise Failure(
                    f"{name}: {output} is not the Keras model's answer {where}"
                )
            continue
        difference = max(
            float(np.abs(row - wanted).max(initial=0.0)) / golden.scale(wanted)
            for row, wanted in zip(answer, expected)
        )
        # `not <=` so that NaN fails too.
        if not difference <= golden.TOLERANCES[exported.dtype]:
            raise Failure(
                f"{name}: {output} is {difference:.1e} from the Keras model's, "
                f"more than {golden.TOLERANCES[exported.dtype]:.0e}, {where}"
            )
        worst = max(worst, difference)
    return worst


def _has_tokens(exported, name, output):
    """Whether an output is `[B, T, ...]`, with an open second dimension."""
    dims = exported.signatures[name].outputs[output].tensor_shape.dim
    return len(dims) > 1 and dims[1].size == -1


def _trim(expected, length):
    """Cuts padding, where all values are equal, from `[B, T]`."""
    padding = np.unique(expected[:, length:])
    return expected[:, :length] if padding.size <= 1 else expected


def check_warmup(exported: Exported) -> str:
    """Every warm-up request is answered, and none is too large to batch."""
    replayed = warmup.read(exported.folder)
    if not 0 < len(replayed) <= warmup.MOST_REQUESTS:
        raise Failure(
            f"{len(replayed)} requests; from 1 to {warmup.MOST_REQUESTS} are "
            "allowed"
        )
    if exported.is_sealed:
        exported.compare(
            "warmup_sha256",
            digests.of_messages(replayed),
            f"{warmup.FILE} is not the exported one",
        )
    for number, request in enumerate(replayed):
        try:
            _replay(exported, request)
        except (Failure, ValueError, session.StatusError) as error:
            raise Failure(f"request {number}: {error}") from error
    return f"{len(replayed)} requests"


def _replay(exported, request):
    inputs = warmup.arrays(request)
    rows = {len(array) if array.ndim else 0 for array in inputs.values()}
    most = max(exported.batch_sizes, default=None)
    if not rows or min(rows) < 1 or (most and max(rows) > most):
        raise Failure(
            f"it has {sorted(rows)} rows; batches have from 1 to "
            f"{most or 'any number'}"
        )
    exported.ask(request.model_spec.signature_name, inputs)


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
