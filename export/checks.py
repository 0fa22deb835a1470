"""What an exported SavedModel must do, one function per check.

A check returns a line for the table or raises an error. Nothing here imports
TensorFlow's Python. The checks run in a process of their own, `main`, since
one may crash it.

Shape letters: N golden rows, B batch, T tokens.
"""

import functools
import itertools
import json
import pathlib
import re
import stat
import sys
import time
from collections.abc import Callable

import numpy as np

from export import files, messages, session
from export.files import card, golden, warmup

# Stateful ops that a model may have: they call functions, and read, restore and
# save weights.
_ALLOWED = {
    *("If", "PartitionedCall", "StatefulPartitionedCall", "While", "Assert"),
    *("ReadVariableOp", "ResourceGather", "VarHandleOp", "VarIsInitializedOp"),
    *("AssignVariableOp", "RestoreV2", "DisableCopyOnRead", "SaveV2"),
    "MergeV2Checkpoints",
}
# Operations that read files or write elsewhere, yet are not marked stateful.
_OUTSIDE = re.compile("File(?!name)|^Debug|^Reader|Summary|PyFunc")
_SIZE_LIMIT = 1.02  # bytes of variables on disk per byte of parameters
# A checkpoint also holds the names of its variables.
_CHECKPOINT_OVERHEAD = 32 * 1024
# Sizes beside those of the warm-up: odd, and more than a batching server takes.
_ODD_SIZES = (1, 3, 7, 31, 33, 67)
_INVALID = messages.error_codes_pb2.INVALID_ARGUMENT
_HOSTILE_ROWS = 3
_NEIGHBOR = b"Return the sum of two numbers."
_ODD_TEXTS = (
    *(b"", b"word " * 200_000, b"w" * 1_000_000),
    *(b"\xff\xfe\x80", b"\xc3", b"ok \xed\xa0\x80"),  # not UTF-8
)


class Failure(Exception):
    """A check that found the export wrong; the message says how."""


class Exported:
    """A version folder. Long checks call `tell` with what they are doing."""

    def __init__(
        self,
        folder: str | pathlib.Path,
        tell: Callable[[str], None] = lambda doing: None,
    ):
        self.folder, self.tell = pathlib.Path(folder), tell

    @functools.cached_property
    def card(self) -> dict:
        return card.load(self.folder)

    @functools.cached_property
    def golden(self) -> dict[str, golden.Case]:
        return golden.load(self.folder)

    @functools.cached_property
    def session(self) -> session.SavedModelSession:
        return session.SavedModelSession(self.folder)

    @property
    def tolerance(self) -> float:
        return golden.TOLERANCES[self.card["dtype"]]

    @property
    def text_signatures(self) -> dict[str, list[str]]:
        """`{name: inputs}` of the signatures whose inputs are all texts."""
        text = messages.types_pb2.DT_STRING
        return {
            name: list(signature.inputs)
            for name, signature in self.session.signatures.items()
            if {x.dtype for x in signature.inputs.values()} <= {text}
        }

    def ask(
        self, signature: str, inputs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Answers a request; raises a `Failure` if a number is not finite, a
        `StatusError` if the model refuses the request."""
        answers = self.session.run(inputs, signature)
        for name, array in answers.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise Failure(f"{signature}: {name} is not finite")
        return answers


def check_manifest(exported: Exported) -> str:
    """Every file is byte for byte what was exported."""
    if differing := files.differences(exported.folder):
        raise Failure("; ".join(differing))
    return "as exported"


def check_permissions(exported: Exported) -> str:
    """Every user may read every file: a model server is another user."""
    for path in (exported.folder, *exported.folder.rglob("*")):
        wanted = 0o005 if path.is_dir() else 0o004
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & wanted != wanted:
            name = path.relative_to(exported.folder.parent)
            raise Failure(f"{name} has mode {mode:03o}: not all may read it")
    return "all may read"


def check_ops(exported: Exported) -> str:
    """TF Serving, without XLA, has every op; none acts outside the model.

    It links TensorFlow's own and those of tensorflow-text
    (`SUPPORTED_TENSORFLOW_OPS` in its `model_servers/BUILD`), which the wheels
    of the same version register too.
    """
    content = (exported.folder / "saved_model.pb").read_bytes()
    saved = messages.saved_model_pb2.SavedModel.FromString(content)
    graphs = [meta_graph.graph_def for meta_graph in saved.meta_graphs]
    functions = [f for graph in graphs for f in graph.library.function]
    nodes = [n for graph in graphs for n in graph.node]
    nodes += [n for function in functions for n in function.node_def]
    if any(x.attr["_XlaMustCompile"].b for x in (*nodes, *functions)):
        raise Failure("a function must be compiled by XLA (`jit_compile`)")
    ops = {node.op for node in nodes} - {f.signature.name for f in functions}
    known = session.known_ops()
    if unknown := sorted(ops - known.keys()):
        raise Failure(f"TF Serving lacks the ops {', '.join(unknown)}")
    outside = {op for op in ops if known[op].is_stateful} - _ALLOWED
    outside |= {op for op in ops if _OUTSIDE.search(op)}
    if outside:
        raise Failure(
            f"the graph has {', '.join(sorted(outside))}: ops that act outside "
            "the model, or change it"
        )
    return f"{len(ops)} kinds of ops"


def check_weights_once(exported: Exported) -> str:
    """The variables on disk are no larger than the model's parameters."""
    parameters = exported.card["parameter_bytes"]
    files_of_variables = exported.folder.glob("variables/variables.data-*")
    stored = sum(path.stat().st_size for path in files_of_variables)
    if stored > _SIZE_LIMIT * parameters + _CHECKPOINT_OVERHEAD:
        raise Failure(
            f"{stored:,} bytes of variables for {parameters:,} bytes of "
            f"parameters ({stored / parameters:.2f}x)"
        )
    return f"{stored / parameters:.4f}x the parameter bytes"


def check_load(exported: Exported) -> str:
    """The C++ loader takes the folder and finds every variable."""
    check_ops(exported)  # before they run
    signatures = sorted(exported.session.signatures)
    answered = sorted(exported.golden)
    if signatures != answered:
        raise Failure(f"signatures {signatures}, golden answers for {answered}")
    for name, case in exported.golden.items():
        exported.ask(name, {k: array[:1] for k, array in case.inputs.items()})
    return f"{len(signatures)} signatures"


def check_golden(exported: Exported) -> str:
    """Every signature answers as the Keras model, in batches of many sizes."""
    worst = 0.0
    for name, case in exported.golden.items():
        batches = list(_batches(exported, case))
        for number, rows in enumerate(batches, 1):
            exported.tell(f"{name}, batch {number} of {len(batches)}")
            inputs = {key: array[rows] for key, array in case.inputs.items()}
            if "token_ids" in inputs and number > 1:
                # The first has columns of padding.
                inputs = golden.trimmed(inputs)
            found = _compare(exported, name, case, rows, inputs)
            worst = max(worst, found)
    return f"largest difference {worst:.1e}"


def _batches(exported, case):
    """Yields rows, int `[B]`, until it has yielded each size and each row."""
    sizes = sorted({*_ODD_SIZES, *exported.card["batch_sizes"]})
    count, start = len(case.decided), 0
    for index, size in enumerate(itertools.cycle(sizes)):
        if index >= len(sizes) and start >= count:
            return
        yield np.arange(start, start + size) % count
        start += size


def _compare(exported, name, case, rows, inputs):
    """Asks for some rows; returns the largest difference of the answers."""
    answers = exported.ask(name, inputs)
    found, wanted = sorted(answers), sorted(case.outputs)
    if found != wanted:
        raise Failure(f"{name} answers {found}, the Keras model {wanted}")
    worst = 0.0
    for output, every in case.outputs.items():
        expected, answer = every[rows], answers[output]
        if answer.ndim > expected.ndim:
            answer = golden.condense(answer)
        dims = exported.session.signatures[name].outputs[output].tensor_shape
        if len(dims.dim) > 1 and dims.dim[1].size == -1:  # [B, T, ...]
            length = answer.shape[1]
            if "token_ids" in inputs:
                length = inputs["token_ids"].shape[1]
            # What is cut off must be padding, where all values are equal.
            if np.unique(expected[:, length:]).size <= 1:
                expected = expected[:, :length]
        ours, keras = ((x.dtype, x.shape) for x in (answer, expected))
        if ours != keras:
            raise Failure(
                f"{name}: {output} is {ours}, of the Keras model {keras}"
            )
        if every.dtype.kind != "f":
            decided = case.decided[rows]
            if not np.array_equal(answer[decided], expected[decided]):
                raise Failure(f"{name}: {output} is not the Keras model's")
            continue
        difference = max(
            float(np.abs(row - wanted).max(initial=0.0)) / golden.scale(wanted)
            for row, wanted in zip(answer, expected)
        )
        if not difference <= exported.tolerance:  # also NaN
            raise Failure(
                f"{name}: {output} is {difference:.1e} from the Keras model's, "
                f"more than {exported.tolerance:.0e}, in a batch of {len(rows)}"
            )
        worst = max(worst, difference)
    return worst


def check_warmup(exported: Exported) -> str:
    """Every warm-up request is answered, and none is too large to batch."""
    replayed = warmup.read(exported.folder)
    if not 0 < len(replayed) <= warmup.MOST_REQUESTS:
        raise Failure(
            f"{len(replayed)} requests; from 1 to {warmup.MOST_REQUESTS} are "
            "allowed"
        )
    most = max(exported.card["batch_sizes"])
    for number, request in enumerate(replayed):
        inputs = messages.from_tensor_protos(request.inputs)
        if max(map(len, inputs.values())) > most:
            raise Failure(f"request {number} has more than {most} rows")
        exported.ask(request.model_spec.signature_name, inputs)
    return f"{len(replayed)} requests"


def check_empty_batch(exported: Exported) -> str:
    """A request without rows has an answer without rows."""
    for name, case in exported.golden.items():
        none = {key: array[:0] for key, array in case.inputs.items()}
        for output, array in exported.ask(name, none).items():
            if len(array):
                raise Failure(f"{name}: {output} has shape {array.shape}")
    return "answered"


def check_odd_texts(exported: Exported) -> str:
    """Empty texts, megabytes and bytes that are not UTF-8 are answered, and do
    not change the answer beside them."""
    batch = np.array([_NEIGHBOR, *_ODD_TEXTS], object)
    for name, inputs in exported.text_signatures.items():
        expected = exported.ask(name, dict.fromkeys(inputs, batch[:1]))
        answers = exported.ask(name, dict.fromkeys(inputs, batch))
        for output, array in answers.items():
            if array.dtype.kind != "f":
                continue
            wanted, found = expected[output], array[:1]
            if wanted.ndim > 1:
                found = found[:, : wanted.shape[1]]
            difference = np.abs(found - wanted).max(initial=0.0)
            # Matrices of other sizes round differently.
            most = 2 * exported.tolerance * golden.scale(wanted)
            if not difference <= most:
                raise Failure(f"{name}: {output} depends on the texts beside")
    return "answered"


def _check_refused(exported, name, inputs):
    try:
        exported.ask(name, inputs)
    except session.StatusError as error:
        if error.code != _INVALID:
            raise Failure(f"{name} refused with {error}") from error
    else:
        raise Failure(f"{name} answers instead of refusing")


def check_wrong_texts(exported: Exported) -> str:
    """A single text, which REST's `"inputs": "..."` sends, is refused, and so
    are nested texts, and two texts for one."""
    for name, inputs in exported.text_signatures.items():
        for wrong in (b"text", [[b"text"]]):
            text = np.array(wrong, object)
            _check_refused(exported, name, dict.fromkeys(inputs, text))
        first, *others = inputs
        if others:
            unlike = dict.fromkeys(others, np.array([b"a"], object))
            unlike[first] = np.array([b"a", b"b"], object)
            _check_refused(exported, name, unlike)
    return "refused as INVALID_ARGUMENT"


def check_wrong_ids(exported: Exported) -> str:
    """Ids, lengths and shapes beyond the model's tables are refused."""
    size, segments, longest = (
        exported.card[name]
        for name in ("vocabulary_size", "num_segments", "max_sequence_length")
    )
    for name, case in exported.golden.items():
        if "token_ids" not in case.inputs:
            continue
        inputs = {key: x[:_HOSTILE_ROWS] for key, x in case.inputs.items()}
        mask = inputs["padding_mask"]
        long = [(0, 0), (0, longest + 1 - mask.shape[1])]
        for hostile in (
            _with_last(inputs, "token_ids", -1),
            _with_last(inputs, "token_ids", size),
            _with_last(inputs, "segment_ids", -1),
            _with_last(inputs, "segment_ids", segments),
            _with_last(inputs, "padding_mask", 2),
            {**inputs, "padding_mask": mask[:, :-1]},
            {key: np.pad(array, long) for key, array in inputs.items()},
            {key: array[0] for key, array in inputs.items()},
            {key: array[None] for key, array in inputs.items()},
        ):
            _check_refused(exported, name, hostile)
    return "refused as INVALID_ARGUMENT"


def _with_last(inputs, name, value):
    """Replaces the last id of an input `[B, T]`."""
    ids = inputs[name].copy()
    ids[-1, -1] = value
    return {**inputs, name: ids}


# The order of the table; what comes before "load" runs nothing.
CHECKS: dict[str, Callable[[Exported], str]] = {
    "manifest": check_manifest,
    "permissions": check_permissions,
    "ops": check_ops,
    "weights stored once": check_weights_once,
    "load": check_load,
    "golden answers": check_golden,
    "warm-up": check_warmup,
    "empty batch": check_empty_batch,
    "odd texts": check_odd_texts,
    "wrong texts": check_wrong_texts,
    "wrong ids": check_wrong_ids,
}


def run(name: str, exported: Exported) -> tuple[bool, str]:
    """Runs a check; returns whether it passed, and what it found."""
    try:
        return True, CHECKS[name](exported)
    except Failure as error:
        return False, str(error)
    except Exception as error:  # a broken export may raise anything
        return False, f"{type(error).__name__}: {error}"


def main() -> None:
    """Runs all checks on the folder `argv[1]`; prints a JSON line as each
    starts, as it goes on, and as it ends."""

    def tell(doing: str, **result: object) -> None:
        print(json.dumps({"doing": doing, **result}), flush=True)

    exported = Exported(sys.argv[1], lambda doing: tell(f"{name}, {doing}"))
    for name in CHECKS:
        started = time.monotonic()
        tell(name)
        passed, detail = run(name, exported)
        seconds = time.monotonic() - started
        tell(name, passed=passed, detail=detail, seconds=seconds)
        if name == "load" and not passed:
            return
