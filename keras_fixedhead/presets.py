"""Named shapes of `FixedHeadBackbone`, those of the paper's tables among them.

Bhojanapalli et al. 2020, "Low-Rank Bottleneck in Multi-head Attention Models",
Tables 1, 2 and 3: 24 layers, the vocabulary and positions of BERT. A name says
the embedding size d, the head size p and the number of heads h.
"""

_BERT = {
    "vocabulary_size": 30522,
    "num_layers": 24,
    "max_sequence_length": 512,
    "num_segments": 2,
    "dropout": 0.1,
    "pooler": True,
}


def _fixed(hidden_dim, head_size, num_heads, intermediate_dim):
    return {
        **_BERT,
        "hidden_dim": hidden_dim,
        "head_size": head_size,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
    }


SHAPES = {
    # Table 1: the head size is the embedding size / heads.
    **{
        f"bert_large_h{heads}": _fixed(1024, 1024 // heads, heads, 4096)
        for heads in (8, 16, 32)
    },
    # Table 2A: more heads of one size.
    **{
        f"fixed_d512_p128_h{heads}": _fixed(512, 128, heads, 4096)
        for heads in (8, 12, 16, 32)
    },
    # Table 2B: larger heads, as many.
    **{
        f"fixed_d512_p{size}_h8": _fixed(512, size, 8, 4096)
        for size in (32, 64, 256)
    },
    # Table 3A: a larger embedding.
    **{
        f"fixed_d768_p128_h{heads}": _fixed(768, 128, heads, 3072)
        for heads in (8, 12, 16, 20)
    },
}


def shape(name):
    """Returns the arguments of a `FixedHeadBackbone` of a named shape.

    Args:
        name: str, one of `SHAPES`.

    Returns:
        A new dictionary, `FixedHeadBackbone(**shape(name))` is the encoder
        with random weights.

    Raises:
        ValueError: if there is no such name.
    """
    if name not in SHAPES:
        raise ValueError(
            f"`name` must be one of {', '.join(SHAPES)}. Received: "
            f"name={name!r}"
        )
    return dict(SHAPES[name])
