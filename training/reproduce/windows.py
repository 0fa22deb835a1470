"""Windows of a stream of tokens, for `fit` on any backend.

Shape letters: N tokens of a split, B sequences of a batch, T sequence length.
"""

import keras
import numpy as np


class Windows(keras.utils.PyDataset):
    """Windows of T tokens that follow each other, and what follows each token.

    Elements: `{"token_ids", "padding_mask"}`, int32 `[B, T]`, and the labels,
    int32 `[B, T]`.

    Args:
        token_ids: Integer array `[N]`.
        sequence_length: Integer, T.
        batch_size: Integer, B.
        batches: Integer, how many to make; None makes each window once, in
            order, and the last batch may be smaller.
        first_batch: Integer, the batch to begin with.
        seed: Integer, decides the order, anew in each epoch.

    Raises:
        ValueError: There are fewer windows than one shuffled batch has, or
            none.
    """

    def __init__(
        self,
        token_ids: np.ndarray,
        sequence_length: int,
        batch_size: int,
        batches: int | None = None,
        first_batch: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        self._token_ids = token_ids
        self._length = sequence_length
        self._size = batch_size
        self._first = first_batch
        self._seed = seed
        self._windows = (len(token_ids) - 1) // sequence_length
        self._order = (None, None)  # an epoch and its order
        self._shuffled = batches is not None
        least = batch_size if self._shuffled else 1
        if self._windows < least:
            raise ValueError(
                f"There must be {least} windows of {sequence_length} tokens "
                f"at least. Received: {len(token_ids)} tokens, "
                f"{self._windows} windows"
            )
        self._batches = (
            batches - first_batch
            if self._shuffled
            else -(-self._windows // batch_size)
        )

    @property
    def num_batches(self):
        return self._batches

    def __getitem__(self, index):
        number = self._first + index
        if self._shuffled:
            per_epoch = self._windows // self._size
            epoch, number = divmod(number, per_epoch)
            if self._order[0] != epoch:
                rng = np.random.default_rng([self._seed, epoch])
                self._order = (epoch, rng.permutation(self._windows))
            windows = self._order[1][number * self._size :][: self._size]
        else:
            first = number * self._size
            windows = np.arange(first, min(first + self._size, self._windows))
        # [B, T + 1]
        places = windows[:, np.newaxis] * self._length + np.arange(
            self._length + 1
        )
        tokens = np.asarray(self._token_ids[places], "int32")
        inputs = np.ascontiguousarray(tokens[:, :-1])
        return (
            {"token_ids": inputs, "padding_mask": np.ones_like(inputs)},
            np.ascontiguousarray(tokens[:, 1:]),
        )
