"""Named shapes of `FixedHeadBackbone`: BERT's, and those of the paper.

Bhojanapalli et al. 2020, https://arxiv.org/abs/2002.07028. A name holds the
embedding size d, the head size p and the number of heads h.

Tables 1, 2 and 3 have 24 layers and the vocabulary and positions of BERT.

Figures 1, 3 and 4 (names with `lm1b`) have 6 layers, 32,000 sub-words, length
256 and a feed-forward width of 1024. The paper states the ends of each range;
the points between are chosen here. Its language models have sinusoidal
positions where `FixedHeadCausalLM` has learned ones.
"""

import functools

from keras_fixedhead.argument_checks import one_of


def _bert(hidden_dim, head_size, num_heads, intermediate_dim, **others):
    return {
        "vocabulary_size": 30522,
        "num_layers": 24,
        "max_sequence_length": 512,
        "num_segments": 2,
        "dropout": 0.1,
        "pooler": True,
        "hidden_dim": hidden_dim,
        "head_size": head_size,
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
        **others,
    }


_lm1b = functools.partial(
    _bert,
    intermediate_dim=1024,
    vocabulary_size=32000,
    num_layers=6,
    max_sequence_length=256,
    num_segments=1,
    pooler=False,
)


SHAPES = {
    # Devlin et al. 2018.
    "bert_base": _bert(768, 64, 12, 3072, num_layers=12),
    "bert_large": _bert(1024, 64, 16, 4096),
}
# Table 1: the head size is the embedding size / heads.
for _h in (8, 16, 32):
    SHAPES[f"bert_large_h{_h}"] = _bert(1024, 1024 // _h, _h, 4096)
# Table 2A: more heads of one size.
for _h in (8, 12, 16, 32):
    SHAPES[f"fixed_d512_p128_h{_h}"] = _bert(512, 128, _h, 4096)
# Table 2B: larger heads, as many.
for _p in (32, 64, 256):
    SHAPES[f"fixed_d512_p{_p}_h8"] = _bert(512, _p, 8, 4096)
# Table 3A: a larger embedding.
for _h in (8, 12, 16, 20):
    SHAPES[f"fixed_d768_p128_h{_h}"] = _bert(768, 128, _h, 3072)
# Figures 1 and 3: more heads of one size, from 4 to 70.
for _h in (4, 8, 16, 32, 64, 70):
    SHAPES[f"lm1b_d256_p32_h{_h}"] = _lm1b(256, 32, _h)
# Figure 1, the baseline: the embedding grows from 256 to 512.
for _d in (256, 320, 384, 448, 512):
    SHAPES[f"lm1b_baseline_d{_d}_h8"] = _lm1b(_d, _d // 8, 8)
# Figure 3a, the baseline: the embedding stays, the feed-forward grows until
# the parameters are those of `lm1b_d256_p32` with as many heads. A layer with
# total head width W and feed-forward width F has (4 d + 3) W + (2 d + 1) F
# parameters, plus some that depend on d only.
for _h in (8, 16, 32, 64):
    _more = (4 * 256 + 3) * (32 * _h - 256) // (2 * 256 + 1)
    SHAPES[f"lm1b_wide_d256_h{_h}"] = _lm1b(
        256, 256 // _h, _h, intermediate_dim=1024 + _more
    )
# Figure 3b: other head sizes.
for _p in (64, 128):
    for _h in (4, 8, 16, 32):
        SHAPES[f"lm1b_d256_p{_p}_h{_h}"] = _lm1b(256, _p, _h)
# Figure 4: the baseline's head size stays 32; the first of its models is
# `lm1b_baseline_d256_h8`.
for _h in (10, 12, 14, 16):
    SHAPES[f"lm1b_baseline_d{32 * _h}_h{_h}"] = _lm1b(32 * _h, 32, _h)


# The paper's results on the development sets, in percent: F1 and exact match
# (EM) on SQuAD, accuracy on MNLI. Means; on MNLI the runs of one model differ
# by 0.1 to 0.4 (Tables 1 and 2). EM of Table 3A is left out.
_METRICS = ("squad_f1", "squad_em", "mnli")
_PUBLISHED = {
    "bert_large_h8": (90.89, 84.1, 85.0),
    "bert_large_h16": (90.61, 83.75, 84.5),
    "bert_large_h32": (90.45, 83.48, 84.4),
    "fixed_d512_p128_h8": (89.6, 82.73, 83.5),
    "fixed_d512_p128_h12": (90.25, 83.18, 84.2),
    "fixed_d512_p128_h16": (90.43, 83.59, 83.9),
    "fixed_d512_p128_h32": (90.95, 84.4, 84.9),
    "fixed_d512_p32_h8": (88.53, 81.19, 82.5),
    "fixed_d512_p64_h8": (89.51, 82.41, 83.4),
    "fixed_d512_p256_h8": (90.33, 83.36, 83.9),
    "fixed_d768_p128_h8": (90.35, None, 84.4),
    "fixed_d768_p128_h12": (90.48, None, 84.4),
    "fixed_d768_p128_h16": (90.92, None, 84.7),
    "fixed_d768_p128_h20": (90.89, None, 85.1),
}
PUBLISHED = {
    name: {key: x for key, x in zip(_METRICS, values) if x is not None}
    for name, values in _PUBLISHED.items()
}


def shape(name: str) -> dict:
    one_of("name", name, SHAPES)
    return dict(SHAPES[name])
