"""Requests and the Keras model's answers, stored beside an export."""

import pathlib
import typing

import numpy as np

FILE = "assets.extra/golden.npz"

# Largest difference of a served value from the Keras model's, relative to the
# largest value if that is above 1. bfloat16 and int8 round at every layer.
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2, "int8": 3e-2}
PADDING = -1e9  # what models answer at padding

# Texts for every text signature; the last is longer than any position table.
TEXTS = (
    "",
    " ",
    "a",
    "Return the sum of two numbers.",
    "How do I read a file line by line?",
    "Élan vital, naïve façade: coöperate über alles.",
    "ΣΊΣΥΦΟΣ и Сизиф, 西西弗斯, シーシュポス, سيزيف",
    "3.14159 -- 1,000,000 [0, 1) {'key': \"value\"} a_b.c(d) # e != f",
    "tab\tnewline\nnon-breaking\u00a0space zero\u200bwidth e\u0301 \ufb01",
    "windows\r\nline, a\0b, \u202eright to left, 😀👍🏽👩\u200d🔬 ok",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "Opens the file, reads it to the end and closes it again. " * 400,
)


class Case(typing.NamedTuple):
    """Requests to one signature, N rows, and the Keras model's answers.

    Inputs and outputs are arrays `[N, ...]`; texts are UTF-8 `bytes` of dtype
    object, floats of every token as `condense` returns them. `decided`, bool
    `[N]`, is False if the best two answers of a row are too close to tell which
    one a sound export chooses.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    decided: np.ndarray


def scale(*arrays: np.ndarray) -> float:
    """Returns the largest magnitude of the floats in arrays, at least 1."""
    largest = 1.0
    for array in arrays:
        if array.dtype.kind == "f":
            sizes = np.abs(array[array != PADDING])
            largest = max(largest, sizes.max(initial=0.0))
    return float(largest)


def condense(array: np.ndarray) -> np.ndarray:
    """Projects floats `[N, T, D]` to `[N, T]`, so that the file stays small.
    Returns other arrays as they are."""
    if array.ndim < 3 or array.dtype.kind != "f":
        return array
    weights = np.cos(np.arange(1, array.shape[-1] + 1) ** 2.0)
    return (array @ (weights / np.linalg.norm(weights))).astype(array.dtype)


def trimmed(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cuts off the columns `[B, T]` that are padding in every row."""
    used = np.flatnonzero(inputs["padding_mask"].any(axis=0))
    longest = used.max(initial=0) + 1
    return {name: array[:, :longest] for name, array in inputs.items()}


def save(folder: pathlib.Path, cases: dict[str, Case]) -> None:
    """Writes cases into an export; texts may be arrays of str."""
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    arrays = {}
    for signature, case in cases.items():
        arrays[f"{signature}/decided"] = case.decided
        for name, array in case.inputs.items():
            arrays[f"{signature}/inputs/{name}"] = array
        for name, array in case.outputs.items():
            arrays[f"{signature}/outputs/{name}"] = array
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(folder: pathlib.Path) -> dict[str, Case]:
    """Reads what `save` wrote, by signature."""
    with np.load(folder / FILE, allow_pickle=False) as stored:
        arrays = dict(stored)
    cases: dict[str, dict] = {}
    for key, array in arrays.items():
        signature, kind, *name = key.split("/")
        case = cases.setdefault(signature, {"inputs": {}, "outputs": {}})
        if name:
            if array.dtype.kind == "U":
                array = np.strings.encode(array, "utf-8").astype(object)
            case[kind][name[0]] = array
        else:
            case[kind] = array
    return {signature: Case(**case) for signature, case in cases.items()}
