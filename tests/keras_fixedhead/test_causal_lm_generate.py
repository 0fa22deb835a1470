"""Language models that continue texts: as without a cache, and by hand."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special
from keras import ops

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]


@pytest.fixture(scope="module")
def model(make_causal_lm):
    """What no test changes, but for `compile`."""
    keras.utils.set_random_seed(7)
    return make_causal_lm()


@pytest.fixture(scope="module")
def bare(make_causal_lm):
    """The same model without preprocessor; no test changes it either."""
    keras.utils.set_random_seed(7)
    model = make_causal_lm()
    model.preprocessor = None
    return model


@pytest.fixture
def prompts(vocabulary):
    """Rows of 13, of which 5, 1 and 3 tokens are given."""
    rng = np.random.default_rng(0)
    padding_mask = np.arange(13) < np.array([[5], [1], [3]])
    token_ids = rng.integers(5, len(vocabulary), (3, 13))
    return {
        "token_ids": np.where(padding_mask, token_ids, 0).astype("int32"),
        "padding_mask": padding_mask,
    }


def continue_without_cache(model, prompts, stop_token_ids=()):
    """Greedy: whole sequences through the model for each token."""
    token_ids = prompts["token_ids"].copy()
    real = prompts["padding_mask"].copy()
    done = np.zeros(len(real), "bool")
    for i in range(1, token_ids.shape[1]):
        logits = model({"token_ids": token_ids, "padding_mask": real})
        best = ops.convert_to_numpy(logits)[:, i - 1].argmax(-1)
        more = ~real[:, i] & ~done
        token_ids[more, i] = best[more]
        real[more, i] = True
        done |= more & np.isin(best, stop_token_ids)
    return token_ids, real


@pytest.mark.parametrize(
    "compiled", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_equals_greedy_without_cache(bare, prompts, compiled):
    bare.compile(sampler="greedy", run_eagerly=not compiled)
    expected, _ = continue_without_cache(bare, prompts)
    for row, given in zip(expected, prompts["padding_mask"]):
        assert len(set(row[~given])) > 1
    outputs = bare.generate(prompts, stop_token_ids=None)
    np.testing.assert_array_equal(outputs["token_ids"], expected)
    assert outputs["padding_mask"].all()


def test_ends_at_the_end_token(bare, prompts):
    bare.compile(sampler="greedy", run_eagerly=True)
    whole, _ = continue_without_cache(bare, prompts)
    # One that ends a row early, one that ends another later.
    stops = (int(whole[0, 6]), int(whole[1, 9]))
    prompts["token_ids"][2, 1] = stops[0]  # given, hence no end
    expected, real = continue_without_cache(bare, prompts, stops)
    assert len(set(real.sum(1))) > 1 and not real.all()
    outputs = bare.generate(prompts, stop_token_ids=stops)
    np.testing.assert_array_equal(outputs["padding_mask"], real)
    np.testing.assert_array_equal(outputs["token_ids"][real], expected[real])
    # Where all have ended, no more is computed.
    assert not outputs["token_ids"][:, real.any(0).sum() :].any()


@pytest.mark.any_backend
def test_texts(model, vocabulary):
    model.compile(sampler="greedy", run_eagerly=True)
    tokenizer = model.preprocessor.tokenizer
    texts = ["Attention a", "head, a b c", ""]
    given = model.preprocessor.generate_preprocess(texts, 11)
    given = {k: np.asarray(v) for k, v in given.items()}
    token_ids, real = continue_without_cache(
        model, given, [tokenizer.end_token_id]
    )

    def detokenize(masks):
        special = tokenizer.special_token_ids
        rows = [row[mask] for row, mask in zip(token_ids, masks)]
        return [
            tokenizer.detokenize(row[~np.isin(row, special)]) for row in rows
        ]

    whole = detokenize(real)
    assert whole[1].startswith("head , a b c")
    assert model.generate(texts, max_length=11) == whole
    assert model.generate(texts[0], max_length=11) == whole[0]
    new = detokenize(real & ~given["padding_mask"])
    assert model.generate(texts, max_length=11, strip_prompt=True) == new


@pytest.mark.any_backend
def test_beams_equal_all_pairs(bare, prompts, vocabulary):
    """As many beams as tokens: of two tokens the likeliest pair."""
    prompts = {name: x[:1, :7] for name, x in prompts.items()}
    size = len(vocabulary)
    token_ids = np.repeat(prompts["token_ids"], size, axis=0)
    token_ids[:, 5] = np.arange(size)
    logits = ops.convert_to_numpy(
        bare({"token_ids": token_ids, "padding_mask": np.ones((size, 7))})
    )
    both = (
        scipy.special.log_softmax(logits[0, 4])[:, None]
        + scipy.special.log_softmax(logits[:, 5], axis=-1)
    )  # fmt: skip
    bare.compile(
        sampler=keras_hub.samplers.BeamSampler(num_beams=size),
        run_eagerly=True,
    )
    outputs = bare.generate(prompts, stop_token_ids=None)
    assert tuple(outputs["token_ids"][0, 5:]) == np.unravel_index(
        both.argmax(), both.shape
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top_k", "top_p", "random", "beam"])
def test_samplers(model, name):
    model.compile(sampler=name)
    for text, more in zip(TEXTS, model.generate(TEXTS)):
        assert more.split()[0] == text.split()[0].rstrip(",")[: len(more)]


@pytest.mark.any_backend
@pytest.mark.parametrize("row", [[0, 0, 0], [0, 1, 1], [1, 0, 1]], ids=str)
def test_prompts_that_do_not_begin(bare, row):
    inputs = {
        "token_ids": np.full((2, 3), 7),
        "padding_mask": np.array([[1, 1, 0], row]),
    }
    with pytest.raises(ValueError, match="`padding_mask` must be 1 at"):
        bare.generate(inputs, stop_token_ids=None)


def test_longer_than_positions(model):
    with pytest.raises(ValueError, match="17 tokens.* sequences of 19"):
        model.generate("a", max_length=19)


@pytest.mark.any_backend
def test_generates_in_mixed_bfloat16(make_causal_lm, prompts):
    mixed = make_causal_lm(dtype="mixed_bfloat16")
    mixed.preprocessor = None
    mixed.compile(sampler="greedy", run_eagerly=True)
    outputs = mixed.generate(prompts, stop_token_ids=None)
    given = prompts["padding_mask"]
    np.testing.assert_array_equal(
        outputs["token_ids"][given], prompts["token_ids"][given]
    )


@pytest.mark.slow
def test_fit_on_texts(make_causal_lm):
    """What follows the second a is what followed the first."""
    model = make_causal_lm(
        noise=0.0, num_layers=1, head_size=7, hidden_dim=23, dropout=0.0
    )
    for variable in model.trainable_variables:
        if "norm" not in variable.path:
            # BERT's are small for a model as narrow.
            variable.assign(10 * variable)
    rng = np.random.default_rng(0)
    letters = rng.choice(list("bcdefgh"), 640)
    texts = [f"a {x} i j k a {x}" for x in letters]
    model.compile(keras.optimizers.Adam(0.003), sampler="greedy")
    history = model.fit(
        texts, batch_size=32, epochs=24, verbose=0, shuffle=False
    ).history
    # Of 8 tokens one alone cannot be known.
    assert history["loss"][-1] < 1.2 * np.log(7) / 8
    texts = ["a d i j", "a g i j"]
    assert model.generate(texts, max_length=8) == [
        "a d i j k a d",
        "a g i j k a g",
    ]
