"""Checks of what a loaded export answers to the requests stored in it.

Shape letters: N golden rows, B batch, T tokens.
"""

import itertools

import numpy as np

from export import session
from export.checks.exported import Exported, Failure
from export.files import digests, golden, warmup

# Sizes beside those of the warm-up: odd, and more than a batching server takes.
_ODD_SIZES = (1, 3, 7, 31, 33, 67)
_IDS = "token_ids"


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
                    f"{name}: {output} is not the Keras model's {where}"
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
