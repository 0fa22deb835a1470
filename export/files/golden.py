"""Requests and the Keras model's answers, stored beside an export."""

import pathlib
import typing
import zipfile
import zlib

import numpy as np

FILE = "assets.extra/golden.npz"
_CARD = "card_sha256"
_MOST_BYTES = 2**30  # unzipped

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


class Golden(typing.NamedTuple):
    """The contents of the file: cases by signature, and the digest of the card
    written with them, None in exports from before there were manifests."""

    cases: dict[str, Case]
    card_sha256: str | None


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


def save(
    folder: pathlib.Path, cases: dict[str, Case], card_sha256: str
) -> None:
    """Writes cases into an export; texts may be arrays of str."""
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    arrays = {_CARD: np.array(card_sha256)}
    for signature, case in cases.items():
        arrays[f"{signature}/decided"] = case.decided
        for name, array in case.inputs.items():
            arrays[f"{signature}/inputs/{name}"] = array
        for name, array in case.outputs.items():
            arrays[f"{signature}/outputs/{name}"] = array
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(folder: pathlib.Path) -> Golden:
    """Reads what `save` wrote; raises a `ValueError` if the file is damaged."""
    try:
        with np.load(folder / FILE, allow_pickle=False) as stored:
            if sum(i.file_size for i in stored.zip.infolist()) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            arrays = {key: stored[key] for key in stored.files}
    # A damaged archive raises any of these.
    except (
        *(AttributeError, EOFError, KeyError, NotImplementedError),
        *(RuntimeError, TypeError, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise ValueError(f"it is not an archive of arrays: {error}") from error
    seal = arrays.pop(_CARD, None)
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    decided = {}
    for key, array in arrays.items():
        signature, *place = key.split("/")
        sides = found.setdefault(signature, {"inputs": {}, "outputs": {}})
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.ravel()]
            array = np.array(texts, object).reshape(array.shape)
        if place == ["decided"]:
            decided[signature] = array
        elif len(place) == 2 and place[0] in sides:
            sides[place[0]][place[1]] = array
        else:
            raise ValueError(f"it has an unknown array {key!r}")
    cases = {}
    for signature, sides in found.items():
        every = (*sides["inputs"].values(), *sides["outputs"].values())
        counts = {array.shape[:1] for array in every}
        if len(counts) != 1 or counts == {()} or counts == {(0,)}:
            raise ValueError(f"{signature} has arrays of {counts} rows")
        (shape,) = counts
        rows = decided.get(signature, np.ones(shape, bool))
        if rows.dtype != bool or rows.shape != shape:
            raise ValueError(f"{signature} has a broken `decided`")
        cases[signature] = Case(sides["inputs"], sides["outputs"], rows)
    return Golden(cases, None if seal is None else str(seal))
