"""Choices that a document's hash makes: is it held out, is it in a sample.

They depend on nothing but the seed and the document itself, so other documents
can come and go, in any order, and equal documents stay together.
"""

import hashlib
import heapq


def is_held_out(document: bytes, heldout: float, seed: int) -> bool:
    """Whether a document is among the part `heldout` of all documents."""
    return _hash(document, b"heldout", seed) < heldout * 2**64


def shard_number(document: bytes, num_shards: int) -> int:
    """Which of the shards a document is in, where it has no place in a row."""
    return _hash(document, b"shard", 0) % num_shards


class Sample:
    """Documents drawn from any number of them.

    Those of the smallest hashes are drawn, so the order in which documents
    come, and in how many samples that are merged, makes no difference.

    Args:
        max_bytes: The most text to draw, and to hold in memory. A document
            that is longer is drawn if it is the first.
        seed: Decides which.
    """

    def __init__(self, max_bytes: int, seed: int):
        self._max_bytes = max_bytes
        self._seed = seed
        self._size = 0
        self._drawn: list[tuple[int, bytes]] = []  # the largest hash first

    def add(self, document: bytes) -> None:
        """Draws the document, perhaps in the place of others."""
        drawn = -_hash(document, b"sample", self._seed), document
        heapq.heappush(self._drawn, drawn)
        self._size += len(document)
        while self._size > self._max_bytes and len(self._drawn) > 1:
            self._size -= len(heapq.heappop(self._drawn)[1])

    def documents(self) -> list[bytes]:
        """What is drawn, by hash."""
        return [document for _, document in sorted(self._drawn, reverse=True)]


def _hash(document: bytes, purpose: bytes, seed: int) -> int:
    """A number below 2**64; another one for each purpose and seed."""
    salt = seed.to_bytes(hashlib.blake2b.SALT_SIZE, "little", signed=True)
    digest = hashlib.blake2b(document, digest_size=8, person=purpose, salt=salt)
    return int.from_bytes(digest.digest(), "little")
