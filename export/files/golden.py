"""Requests with the Keras model's own answers, stored beside an export."""

import numpy as np

FILE = "assets.extra/golden.npz"

# What a text signature is tried on: empty, short, long, other scripts,
# accents, punctuation, digits, control characters, code, and a text that is
# longer than any position table.
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
    "The quick brown fox jumps over the lazy dog. " * 6,
    "Opens the file, reads it to the end and closes it again. " * 400,
)


def save(folder, cases):
    """Writes the requests and answers of an export.

    Args:
        folder: path of the SavedModel.
        cases: `{signature: (inputs, outputs)}`, each `{name: array}`; texts
            are arrays of `str`.
    """
    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    arrays = {}
    for signature, (inputs, outputs) in cases.items():
        for name, array in inputs.items():
            arrays[f"{signature}/inputs/{name}"] = array
        for name, array in outputs.items():
            arrays[f"{signature}/outputs/{name}"] = array
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load(folder):
    """Reads what `save` wrote; texts come as UTF-8 `bytes`, dtype object.

    Raises:
        OSError: if the file is missing.
        ValueError: if it is not a file that `save` wrote.
    """
    cases = {}
    with np.load(folder / FILE, allow_pickle=False) as arrays:
        for key in arrays.files:
            signature, side, name = key.split("/")
            array = arrays[key]
            if array.dtype.kind == "U":
                array = np.array([text.encode() for text in array], object)
            inputs, outputs = cases.setdefault(signature, ({}, {}))
            (inputs if side == "inputs" else outputs)[name] = array
    return cases
