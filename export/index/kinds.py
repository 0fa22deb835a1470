"""The kinds of index; FAISS is imported when one is made."""

import enum
import pkgutil
import typing

if typing.TYPE_CHECKING:
    from export.index.faiss_index import FaissIndex


class Kind(enum.Enum):
    """The kinds of index, by the suffix of their files.

    A class of another kind has the methods of `FaissIndex`.
    """

    faiss = "export.index.faiss_index:FaissIndex"

    @property
    def index_class(self) -> "type[FaissIndex]":
        return pkgutil.resolve_name(self.value)
