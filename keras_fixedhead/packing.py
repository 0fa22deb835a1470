"""The real tokens of a padded batch, gathered into one sequence and back.

Shape letters: B batch, T padded length, P real tokens of the whole batch.
"""

from keras import ops

from keras_fixedhead.attention_functions import boolean_mask
from keras_fixedhead.layer_config import Tensor


class Packing:
    """The places of the real tokens of a padded batch, by its mask `[B, T]`.

    Between `pack` and `pad`, dense layers see real tokens only; attention alone
    needs the padded form. P depends on the data, so this works in eager mode
    and in TensorFlow graphs (XLA on CPU and GPU included). Under `jax.jit` and
    on TPUs sizes are fixed: `fixed_size` keeps the padding, P = B * T.
    """

    def __init__(self, padding_mask: Tensor, fixed_size: bool = False):
        self.padding_mask = boolean_mask("padding_mask", padding_mask)
        self.fixed_size = fixed_size
        self.indices = None
        if not fixed_size:
            # [P], positions in the flattened batch
            self.indices = ops.nonzero(ops.reshape(self.padding_mask, (-1,)))[0]

    def pack(self, x: Tensor) -> Tensor:
        """Gathers the real tokens: `[B, T, ...]` -> `[P, ...]`."""
        flat = ops.reshape(x, (-1, *x.shape[2:]))
        return flat if self.fixed_size else ops.take(flat, self.indices, axis=0)

    def pad(self, x: Tensor) -> Tensor:
        """Returns packed tokens to their places: `[P, D]` -> `[B, T, D]`.

        Padding positions become zeros, unless the size is fixed.
        """
        batch, length = ops.shape(self.padding_mask)
        if not self.fixed_size:
            x = ops.scatter(
                ops.expand_dims(self.indices, 1),
                x,
                (batch * length, x.shape[-1]),
            )
        return ops.reshape(x, (batch, length, x.shape[-1]))

    def take(self, x: Tensor, positions: Tensor) -> Tensor:
        """Gathers packed tokens `[P, D]` by positions `[B, K]` below T.

        Returns `[B, K, D]`; undefined at the positions of padding.
        """
        batch, length = ops.shape(self.padding_mask)
        starts = ops.expand_dims(ops.arange(batch) * length, 1)
        indices = ops.cast(positions, starts.dtype) + starts
        if not self.fixed_size:
            real = ops.reshape(ops.cast(self.padding_mask, "int32"), (-1,))
            places = ops.maximum(ops.cumsum(real) - 1, 0)
            indices = ops.take(places, indices, axis=0)
        return ops.take(x, indices, axis=0)
