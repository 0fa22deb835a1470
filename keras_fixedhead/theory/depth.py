"""Up to which depth a wide Transformer gains from another layer.

Two answers to the same question, which differ by a factor of 1.8 at an
embedding size of 256 and of 5.4 at 1024:

| hidden_dim | 256 | 512 | 768 | 1024 |
| --- | --- | --- | --- | --- |
| `depth_threshold` | 5.05 | 5.68 | 6.05 | 6.31 |
| `fitted_depth_threshold` | 9.1 | 21.6 | 28.9 | 34.1 |
"""

import math

from keras_fixedhead.attention_checks import positive_int


def depth_threshold(hidden_dim: int) -> float:
    """The number of layers up to which depth is worth more than width.

    In theory: `log_3(hidden_dim)`, a bound that was proved for a simplified
    self-attention. `hidden_dim` is the embedding size.

    Source: Levine et al. 2020, "Limits to Depth Efficiencies of
    Self-Attention", https://arxiv.org/abs/2006.12467v1.
    """
    return math.log(positive_int("hidden_dim", hidden_dim), 3)


def fitted_depth_threshold(hidden_dim: int) -> float:
    """The number of layers up to which depth is worth more than width.

    As measured: `(ln(hidden_dim) - 5.039) / 0.0555`, a line through the sizes
    at which trained language models of different depths were equally good.
    Below an embedding size of 155, outside the fit, it is negative.

    Source: a later fit by the same authors, "The Depth-to-Width Interplay in
    Self-Attention", https://arxiv.org/abs/2006.12467v3.
    """
    return (math.log(positive_int("hidden_dim", hidden_dim)) - 5.039) / 0.0555
