"""What every way to rank documents returns, and its optional packages.

Shape letters: Q queries, K documents ranked.
"""

import importlib
import types
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


def import_extra(module: str) -> types.ModuleType:
    """Imports a module of the extra `retrieval`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Retrieval needs {module}: pip install keras_fixedhead[retrieval]"
        ) from error
