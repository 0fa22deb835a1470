"""What every way to rank documents returns, and the checks they share.

Shape letters: Q queries, K documents ranked.
"""

import importlib
import typing

import numpy as np


class Ranking(typing.NamedTuple):
    """The best documents of each query, best first.

    Attributes:
        documents: int64 array `[Q, K]`, the documents' row numbers; -1 where
            fewer than K were found.
        scores: float32 array `[Q, K]`, higher is better; -inf at -1.
    """

    documents: np.ndarray
    scores: np.ndarray


def import_extra(module):
    """Imports a module of the extra `retrieval`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"keras_fixedhead.retrieval needs {module}: "
            "pip install keras_fixedhead[retrieval]"
        ) from error


def positive(name, value):
    """Returns `value`, or raises a `ValueError` if it is under 1."""
    if value < 1:
        raise ValueError(f"`{name}` must be positive. Received: {value}")
    return value
