"""The states of calibration texts, in files, batch by batch."""

import pathlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from keras import ops

from keras_fixedhead.growth import to_numpy
from keras_fixedhead.layer_config import Tensor
from keras_fixedhead.packing import Packing

_INPUTS = ("token_ids", "segment_ids", "padding_mask")


class States:
    """Arrays of each batch in files, so that memory does not hold them all."""

    def __init__(self, folder: pathlib.Path, batches: Iterable[dict]):
        self._folder = folder
        self.batches = self.tokens = 0
        # To be replaced by the function of a progress bar.
        self.advance: Callable[[float], None] = lambda amount: None
        for batch in batches:
            inputs = {name: to_numpy(batch[name], "int32") for name in _INPUTS}
            real = int((inputs["padding_mask"] != 0).sum())
            if real:
                for name, values in inputs.items():
                    self.write(name, self.batches, values)
                self.batches += 1
                self.tokens += real
        if not self.tokens:
            raise ValueError("`batches` must have real tokens. Received: none")

    def write(self, name: str, number: int, values: Tensor) -> None:
        values = ops.convert_to_numpy(values)
        if "int" not in values.dtype.name:
            values = values.astype("float32")  # NumPy saves no bfloat16
        np.save(self._folder / f"{name}_{number}.npy", values)

    def read(self, name: str, number: int) -> np.ndarray:
        return np.load(self._folder / f"{name}_{number}.npy")

    def each(self) -> Iterator[tuple[int, dict, Packing]]:
        """Yields each batch: its number, inputs `[B, T]` and `Packing`."""
        for number in range(self.batches):
            inputs = {
                name: ops.convert_to_tensor(self.read(name, number))
                for name in _INPUTS
            }
            yield number, inputs, Packing(inputs["padding_mask"])
            self.advance(1)
