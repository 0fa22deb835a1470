"""The sizes of the grid: for two cores, for a GPU, and as in the paper."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes that all cells of a grid share."""

    num_layers: int
    hidden_dim: int
    """The embedding size d."""
    intermediate_dim: int
    num_heads: int
    """Heads of the standard layer that the grid varies; divides d."""
    sequence_length: int
    dropout: float
    steps: int
    """Updates of a run."""
    batch_size: int
    """Sequences of an update."""
    warmup_steps: int
    decay: str
    """`cosine`, to 0, or `rsqrt`, with the square root of the step."""
    rates: tuple[float, ...]
    """Peaks of the learning rate to choose from."""
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    parts: int = 1
    """Batches that an update is computed in, one after the other."""
    seeds: int = 3
    """Runs of each cell."""
    dtype: str = "float32"
    context_length: int = 64
    """n of the synthetic contexts."""
    context_steps: int = 1000
    """Updates of a head that is fitted to a context."""

    @property
    def head_size(self) -> int:
        """The head size of the standard layer, d / h."""
        return self.hidden_dim // self.num_heads

    @property
    def context_head_sizes(self) -> list[int]:
        """Head sizes fitted to contexts: powers of 2 under n, and n - 1."""
        length = self.context_length
        powers = [2**i for i in range(1, length.bit_length())]
        return [*(size for size in powers if size < length - 1), length - 1]


SCALES = {
    # About three hours on two cores.
    "cpu": Scale(
        num_layers=2,
        hidden_dim=64,
        intermediate_dim=256,
        num_heads=4,
        sequence_length=64,
        dropout=0.0,
        steps=2400,
        batch_size=32,
        # With a tenth of the updates as warmup, these post-norm models learn
        # nothing at the rate next to the best.
        warmup_steps=720,
        decay="cosine",
        rates=(2.83e-3, 4e-3, 5.66e-3, 8e-3),
    ),
    # The shapes of the paper's language model, with fewer updates.
    "gpu": Scale(
        num_layers=6,
        hidden_dim=256,
        intermediate_dim=1024,
        num_heads=8,
        sequence_length=256,
        dropout=0.0,
        steps=2400,
        batch_size=64,
        warmup_steps=720,
        decay="cosine",
        rates=(5e-4, 1e-3, 2e-3, 4e-3),
        dtype="mixed_bfloat16",
        context_length=128,
    ),
    # Section 4.1 and Fig. 3 of https://arxiv.org/abs/2002.07028. Its learning
    # rate of 0.1 is taken to be divided by the root of the step: the peak is
    # 0.1 / sqrt(10,000).
    "paper": Scale(
        num_layers=6,
        hidden_dim=256,
        intermediate_dim=1024,
        num_heads=8,
        sequence_length=256,
        dropout=0.1,
        steps=250_000,
        batch_size=4096,
        warmup_steps=10_000,
        decay="rsqrt",
        rates=(1e-3,),
        clip_norm=None,
        parts=64,
        context_length=256,
    ),
}
