"""Language models: by hand, with a cache and without, and continuing texts."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special

from keras_fixedhead import FixedHeadBackbone, FixedHeadCausalLM
from tests.tiny_models import as_numpy, assert_close

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]


@pytest.fixture(scope="module")
def model(make_causal_lm):
    """What no test changes, but for `compile`."""
    keras.utils.set_random_seed(7)
    return make_causal_lm()


def whole(inputs):
    """Three sequences without padding."""
    token_ids = inputs["token_ids"][:3]
    return {"token_ids": token_ids, "padding_mask": np.ones(token_ids.shape)}


def tokens_with_cache(model, token_ids, lengths):
    """The logits of whole sequences, a part at a time."""
    batch, length = token_ids.shape
    cache = model.backbone.new_cache(batch, length)
    start, logits = 0, []
    for part in lengths:
        outputs = model.call_with_cache(
            token_ids[:, start : start + part], cache, start
        )
        logits.append(as_numpy(outputs[0]))
        cache = outputs[2]
        start += part
    assert start == length
    return np.concatenate(logits, axis=1)


def test_logits_equal_numpy(model, inputs):
    inputs["segment_ids"] *= 0
    x = as_numpy(model.backbone(inputs)["sequence_output"])
    table = as_numpy(model.backbone.token_embedding.embeddings)
    del inputs["segment_ids"]
    assert_close(model(inputs), x @ table.T, rtol=1e-5, atol=1e-4)


class TestLoss:
    def by_hand(self, model, texts):
        """The mean of minus the logarithms of probabilities."""
        tokenizer = model.preprocessor.tokenizer
        losses = []
        for text in texts:
            ids = [tokenizer.start_token_id, *tokenizer(text)]
            ids.append(tokenizer.end_token_id)
            token_ids = np.array([ids[:-1]])
            real = np.ones_like(token_ids)
            logits = model({"token_ids": token_ids, "padding_mask": real})
            logits = as_numpy(logits)[0].astype("float64")
            found = scipy.special.log_softmax(logits, axis=-1)
            losses.extend(-found[range(len(ids) - 1), ids[1:]])
        return np.mean(losses)

    @pytest.mark.any_backend
    def test_equals_numpy(self, model):
        perplexity = keras_hub.metrics.Perplexity(from_logits=True)
        model.compile(weighted_metrics=[perplexity])
        loss = self.by_hand(model, TEXTS)
        figures = model.evaluate(TEXTS, verbose=0, return_dict=True)
        assert figures["loss"] == pytest.approx(loss, rel=1e-5)
        assert figures["perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)

    @pytest.mark.any_backend
    def test_score(self, model):
        x, y, weights = as_numpy(model.preprocessor(TEXTS))
        losses = model.score(**x, scoring_mode="loss", target_ids=y)
        losses = as_numpy(losses)
        assert losses.shape == (4, 13) and losses.dtype == "float32"
        for row, weight, text in zip(losses, weights, TEXTS):
            loss = self.by_hand(model, [text])
            assert row[weight == 1].mean() == pytest.approx(loss, rel=1e-5)
        found = model.score(x["token_ids"][1:2, :9])
        assert_close(found, model(x)[1:2, :9], rtol=1e-5, atol=1e-4)


@pytest.mark.any_backend
@pytest.mark.parametrize("attention_window", [None, 3])
def test_parts_with_a_cache_equal_the_whole(
    float64, make_causal_lm, inputs, attention_window
):
    model = make_causal_lm(attention_window=attention_window, dtype="float64")
    inputs = whole(inputs)
    expected = model(inputs)
    logits = tokens_with_cache(model, inputs["token_ids"], [5, 1, 7])
    assert_close(logits, expected, rtol=1e-11, atol=1e-11)


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.slow
def test_int8(make_causal_lm, inputs, tmp_path):
    model = make_causal_lm()
    inputs = whole(inputs)
    before = as_numpy(model(inputs))
    model.quantize("int8")
    assert model.backbone.token_embedding.embeddings.dtype == "int8"
    after = as_numpy(model(inputs))
    assert abs(after - before).max() < 0.1 * abs(before).max()
    logits = tokens_with_cache(model, inputs["token_ids"], [5, 1, 7])
    assert_close(logits, after, rtol=1e-4, atol=1e-3)
    model.save(tmp_path / "int8.keras")
    again = keras.models.load_model(tmp_path / "int8.keras")
    assert_close(again(inputs), after, rtol=1e-5, atol=1e-4)


@pytest.mark.any_backend
def test_preset_of_an_encoder(make_embedder, tmp_path):
    """It is not causal, but a model with its weights may be."""
    embedder = make_embedder()
    embedder.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="from_preset.*causal=True"):
        FixedHeadCausalLM.from_preset(str(tmp_path))
    backbone = FixedHeadBackbone.from_preset(str(tmp_path), causal=True)
    assert FixedHeadCausalLM(backbone).backbone.causal is True
    np.testing.assert_array_equal(
        backbone.token_embedding.embeddings,
        embedder.backbone.token_embedding.embeddings,
    )


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
        best = as_numpy(logits)[:, i - 1].argmax(-1)
        more = ~real[:, i] & ~done
        token_ids[more, i] = best[more]
        real[more, i] = True
        done |= more & np.isin(best, stop_token_ids)
    return token_ids, real


def test_equals_greedy_without_cache(bare, prompts):
    """Up to the end token of each."""
    bare.compile(sampler="greedy")
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
    given = as_numpy(given)
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
    real = np.ones_like(token_ids)
    logits = as_numpy(bare({"token_ids": token_ids, "padding_mask": real}))
    found = scipy.special.log_softmax(logits, axis=-1)
    both = found[0, 4][:, None] + found[:, 5]
    sampler = keras_hub.samplers.BeamSampler(num_beams=size)
    bare.compile(sampler=sampler, run_eagerly=True)
    outputs = bare.generate(prompts, stop_token_ids=None)
    assert tuple(outputs["token_ids"][0, 5:]) == np.unravel_index(
        both.argmax(), both.shape
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("row", [[0, 1, 1], [1, 0, 1]], ids=str)
def test_prompts_that_do_not_begin(bare, row):
    inputs = {
        "token_ids": np.full((2, 3), 7),
        "padding_mask": np.array([[1, 1, 0], row]),
    }
    with pytest.raises(ValueError, match="`padding_mask` must be 1 at"):
        bare.generate(inputs, stop_token_ids=None)


def test_longer_than_positions(model):
    with pytest.raises(ValueError, match="most the model's 17. Received: 19"):
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
