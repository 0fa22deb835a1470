"""Requests with the Keras model's own answers, stored beside an export."""

import typing
import zipfile
import zlib

import numpy as np

FILE = "assets.extra/golden.npz"
_CARD = "card_sha256"
_MOST_BYTES = 2**30  # unzipped

# What a text signature is tried on: empty, short, long, other scripts,
# accents, punctuation, digits, control characters, emoji, code, and a text
# that is longer than any position table.
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

    Attributes:
        inputs: `{name: array [N, ...]}`; texts are UTF-8 `bytes`, dtype
            object.
        outputs: `{name: array [N, ...]}`; texts as those; floats of every
            token as `condense` returns them.
        decided: bool array `[N]`, False of a row whose best answer and its
            next best are too close to tell which one a sound export chooses.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    decided: np.ndarray


class Golden(typing.NamedTuple):
    """What the file holds.

    Attributes:
        cases: `{signature: Case}`.
        card_sha256: str, the digest of the card written with it; None in
            exports from before there were manifests.
    """

    cases: dict[str, Case]
    card_sha256: str | None


def condense(array):
    """Projects the numbers of each token on one, float `[N, T, D]` to
    `[N, T]`, so that the file stays small. Other arrays stay as they are."""
    if array.ndim < 3 or array.dtype.kind != "f":
        return array
    weights = np.cos(np.arange(1, array.shape[-1] + 1) ** 2.0)
    return (array @ (weights / np.linalg.norm(weights))).astype(array.dtype)


def trimmed(inputs):
    """Cuts off the columns of token ids that are padding in every row.

    Args:
        inputs: a model's inputs, `{name: array [B, T]}`.
    """
    used = np.flatnonzero(inputs["padding_mask"].any(axis=0))
    longest = used.max(initial=0) + 1
    return {name: array[:, :longest] for name, array in inputs.items()}


def save(folder, cases, card_sha256):
    """Writes `Golden`; texts may be arrays of str.

    Args:
        folder: path of the SavedModel.
        cases, card_sha256: as in `Golden`.
    """
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


def load(folder):
    """Reads what `save` wrote.

    Raises:
        OSError: if the file is missing.
        ValueError: if it is not a file that `save` wrote.
    """
    try:
        with np.load(folder / FILE, allow_pickle=False) as stored:
            if sum(i.file_size for i in stored.zip.infolist()) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            arrays = {key: stored[key] for key in stored.files}
    # What `numpy` raises of a broken archive, and `zlib` of its parts.
    except (
        *(AttributeError, EOFError, KeyError, NotImplementedError),
        *(RuntimeError, TypeError, zipfile.BadZipFile, zlib.error),
    ) as error:
        raise ValueError(f"it is not an archive of arrays: {error}") from error
    seal = arrays.pop(_CARD, None)
    cases = {}
    for key, array in arrays.items():
        signature, *place = key.split("/")
        case = cases.setdefault(signature, Case({}, {}, None))
        if array.dtype.kind == "U" and array.ndim == 1:
            array = np.array([text.encode() for text in array], object)
        if place == ["decided"]:
            cases[signature] = case._replace(decided=array)
        elif len(place) == 2 and place[0] in ("inputs", "outputs"):
            getattr(case, place[0])[place[1]] = array
        else:
            raise ValueError(f"it has an unknown array {key!r}")
    for signature, case in cases.items():
        counts = {
            array.shape[:1]
            for array in (*case.inputs.values(), *case.outputs.values())
        }
        if len(counts) != 1 or counts == {()} or counts == {(0,)}:
            raise ValueError(f"{signature} has arrays of {counts} rows")
        ((count,),) = counts
        if case.decided is not None and (
            case.decided.dtype != bool or case.decided.shape != (count,)
        ):
            raise ValueError(f"{signature} has a broken `decided`")
        if case.decided is None:
            cases[signature] = case._replace(decided=np.ones(count, bool))
    return Golden(cases, None if seal is None else str(seal))
