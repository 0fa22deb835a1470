"""Keeps the memory of a long-running server small, where glibc allocates it.

See mallopt(3) and malloc_trim(3). Elsewhere these functions do nothing.
"""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LOADING_BYTES = 2**20
_SERVING_BYTES = 32 * 2**20  # where glibc's own threshold ends up


def _call(name, *arguments):
    if function := getattr(ctypes.CDLL(None), name, None):
        function(*arguments)


def start():
    """Takes every block from one arena.

    glibc has eight for each core. `malloc_trim` gives back the free end of the
    first alone, and each has its own holes.
    """
    _call("mallopt", _M_ARENA_MAX, 1)
    _call("mallopt", _M_MMAP_THRESHOLD, _SERVING_BYTES)
    _call("mallopt", _M_TRIM_THRESHOLD, 2 * _SERVING_BYTES)


@contextlib.contextmanager
def loading():
    """Maps large blocks, such as weights, on their own meanwhile.

    Among the blocks of requests, the weights of each version would leave holes
    when they go. To map every tensor of a request would double its time.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _LOADING_BYTES)
    try:
        yield
    finally:
        _call("mallopt", _M_MMAP_THRESHOLD, _SERVING_BYTES)


def give_back():
    """Returns what requests have freed, which glibc would keep."""
    _call("malloc_trim", 0)
