"""Named shapes: their parameters are those that the paper's tables give."""

import pytest

from keras_fixedhead import FixedHeadBackbone, presets

# Millions, Tables 1, 2A, 2B and 3A.
PUBLISHED = {
    "bert_large_h8": 336,
    "bert_large_h16": 336,
    "bert_large_h32": 336,
    "fixed_d512_p128_h8": 168,
    "fixed_d512_p128_h12": 193,
    "fixed_d512_p128_h16": 218,
    "fixed_d512_p128_h32": 319,
    "fixed_d512_p32_h8": 130,
    "fixed_d512_p64_h8": 142,
    "fixed_d512_p256_h8": 218,
    "fixed_d768_p128_h8": 214,
    "fixed_d768_p128_h12": 252,
    "fixed_d768_p128_h16": 290,
    "fixed_d768_p128_h20": 327,
}


def backbone_parameters(shape):
    d, f = shape["hidden_dim"], shape["intermediate_dim"]
    heads = shape["num_heads"] * shape["head_size"]
    tables = shape["vocabulary_size"] + shape["max_sequence_length"]
    norm = 2 * d
    block = 3 * (d + 1) * heads + (heads + 1) * d + norm
    block += (d + 1) * f + (f + 1) * d + norm
    embeddings = (tables + shape["num_segments"]) * d + norm
    return embeddings + shape["num_layers"] * block + (d + 1) * d


def test_the_count_is_the_model_s():
    shape = {
        **presets.shape("fixed_d512_p128_h8"),
        "vocabulary_size": 97,
        "num_layers": 2,
        "max_sequence_length": 13,
        "hidden_dim": 11,
        "head_size": 7,
        "num_heads": 3,
        "intermediate_dim": 17,
    }
    model = FixedHeadBackbone(**shape)
    assert model.count_params() == backbone_parameters(shape)


def test_the_paper_s_parameters():
    assert presets.SHAPES.keys() == PUBLISHED.keys()
    for name, millions in PUBLISHED.items():
        shape = presets.shape(name)
        d, v = shape["hidden_dim"], shape["vocabulary_size"]
        # Masked words: dense, norm and a bias per word; next sentence: two.
        heads = (d + 1) * d + 2 * d + v + 2 * (d + 1)
        total = backbone_parameters(shape) + heads
        assert round(total / 1e6) == millions, name


def test_unknown_name():
    with pytest.raises(ValueError, match="fixed_d512_p128_h8.*'bert'"):
        presets.shape("bert")
