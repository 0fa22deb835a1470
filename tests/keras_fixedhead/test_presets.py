"""Named shapes: their parameters are those that the paper's tables give."""

import pytest

from keras_fixedhead import presets
from keras_fixedhead.planner import EncoderShape, ParameterCount

pytestmark = pytest.mark.any_backend

# Millions, Tables 1, 2A, 2B and 3A.
MILLIONS = {
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


def parameters(name):
    return ParameterCount.of(EncoderShape(**presets.shape(name))).total


def test_the_paper_s_parameters():
    assert MILLIONS.keys() == presets.PUBLISHED.keys()
    for name, millions in MILLIONS.items():
        assert round(parameters(name) / 1e6) == millions, name


def test_bert():
    assert presets.shape("bert_large") == presets.shape("bert_large_h16")
    # 110M, Devlin et al. 2018.
    assert round(parameters("bert_base") / 1e6) == 110
    base = EncoderShape(**presets.shape("bert_base"))
    # What Hugging Face's bert-base-uncased holds without heads.
    assert ParameterCount.of(base).encoder == 109_482_240


def test_every_name_says_its_shape():
    assert len(presets.SHAPES) == 2 + 14 + 6 + 5 + 4 + 8 + 4
    for name, sizes in presets.SHAPES.items():
        for letter, key in (
            ("d", "hidden_dim"),
            ("p", "head_size"),
            ("h", "num_heads"),
        ):
            for part in name.split("_"):
                if part[0] == letter and part[1:].isdigit():
                    assert sizes[key] == int(part[1:]), name
        if "bert" in name or "baseline" in name or "wide" in name:
            width = sizes["num_heads"] * sizes["head_size"]
            assert width == sizes["hidden_dim"], name
        if name.startswith("lm1b"):
            assert sizes["num_layers"] == 6
            assert sizes["vocabulary_size"] == 32000
            assert sizes["max_sequence_length"] == 256


@pytest.mark.parametrize("heads", [8, 16, 32, 64])
def test_a_wider_feed_forward_matches_the_parameters_of_more_heads(heads):
    wide, fixed = f"lm1b_wide_d256_h{heads}", f"lm1b_d256_p32_h{heads}"
    # One more unit of the feed-forward layers would be too much.
    unit = 6 * (2 * 256 + 1)
    assert 0 <= parameters(fixed) - parameters(wide) < unit
    if heads == 8:  # "the same as the 8 head baseline model"
        baseline = presets.shape("lm1b_baseline_d256_h8")
        assert presets.shape(wide) == presets.shape(fixed) == baseline
