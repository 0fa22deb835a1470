"""The real tokens of a padded batch, gathered into one sequence and back.

Shape letters: B batch, T padded length, P real tokens of the whole batch.
"""

from keras import ops


class Packing:
    """Where the real tokens of a padded batch lie.

    Dense layers cost the same for a padding token as for a real one. Between
    `pack` and `pad` they see real tokens only; attention alone needs the
    padded form. P depends on the data, so this works in eager mode and in
    TensorFlow graphs (XLA included), not under `jax.jit`.

    Args:
        padding_mask: bool or int tensor `[B, T]`, 1 = real token. The real
            tokens need not be contiguous.
    """

    def __init__(self, padding_mask):
        self.padding_mask = ops.cast(padding_mask, "bool")
        # [P], positions in the flattened batch
        self.indices = ops.nonzero(ops.reshape(self.padding_mask, (-1,)))[0]

    def pack(self, x):
        """Gathers the real tokens: `[B, T, ...]` -> `[P, ...]`."""
        flat = ops.reshape(x, (-1, *x.shape[2:]))
        return ops.take(flat, self.indices, axis=0)

    def pad(self, x):
        """Puts packed tokens back, zeros at the padding: `[P, D]` ->
        `[B, T, D]`."""
        batch, length = ops.shape(self.padding_mask)
        flat = ops.scatter(
            ops.expand_dims(self.indices, 1),
            x,
            (batch * length, x.shape[-1]),
        )
        return ops.reshape(flat, (batch, length, x.shape[-1]))
