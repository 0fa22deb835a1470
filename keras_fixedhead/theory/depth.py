"""From which depth on more layers add little, by the embedding size."""

import math


def depth_threshold(hidden_dim):
    """The depth up to which depth is efficient, log_3(d).

    Args:
        hidden_dim: int. The embedding size d.

    Returns:
        A float, in layers.

    Source: Levine et al. 2020, "Limits to Depth Efficiencies of
    Self-Attention", https://arxiv.org/abs/2006.12467.
    """
    return math.log(hidden_dim, 3)


def fitted_depth_threshold(hidden_dim):
    """The same authors' later fit, (ln d - 5.039) / 0.0555.

    Args:
        hidden_dim: int. The embedding size d.

    Returns:
        A float, in layers. Under an embedding size of 155 it is negative,
        and says nothing.

    Source: Levine et al. 2020, https://arxiv.org/abs/2006.12467.
    """
    return (math.log(hidden_dim) - 5.039) / 0.0555
