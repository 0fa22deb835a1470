"""Language modeling: by hand, with a cache and without."""

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadCausalLM,
    presets,
)
from keras_fixedhead.planner import EncoderShape, ParameterCount
from tests import tiny_models

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]


@pytest.fixture(scope="module")
def model(make_causal_lm):
    """What no test changes, but for `compile`."""
    keras.utils.set_random_seed(7)
    return make_causal_lm()


def without_segments(inputs):
    return {name: inputs[name] for name in ("token_ids", "padding_mask")}


def whole(inputs):
    """Three sequences without padding."""
    token_ids = inputs["token_ids"][:3]
    return {"token_ids": token_ids, "padding_mask": np.ones(token_ids.shape)}


def tokens_with_cache(model, token_ids, lengths):
    """The logits of whole sequences, a part at a time."""
    batch, length = token_ids.shape
    cache = tuple(
        np.zeros((batch, 2, length, sum(layer.attention.head_sizes)))
        for layer in model.backbone.transformer_layers
    )
    start, logits = 0, []
    for part in lengths:
        outputs = model.call_with_cache(
            token_ids[:, start : start + part], cache, start
        )
        logits.append(ops.convert_to_numpy(outputs[0]))
        cache = outputs[2]
        start += part
    assert start == length
    return np.concatenate(logits, axis=1)


class TestLogits:
    def test_equal_numpy(self, model, inputs):
        x = model.backbone(
            {**inputs, "segment_ids": np.zeros_like(inputs["segment_ids"])}
        )["sequence_output"]
        table = ops.convert_to_numpy(model.backbone.token_embedding.embeddings)
        logits = ops.convert_to_numpy(model(without_segments(inputs)))
        assert logits.shape == (5, 13, len(table))
        np.testing.assert_allclose(
            logits, ops.convert_to_numpy(x) @ table.T, rtol=1e-5, atol=1e-4
        )

    def test_later_tokens_change_none_before(self, make_causal_lm, inputs):
        model = make_causal_lm(attention_window=5)
        inputs = without_segments(inputs)
        before = ops.convert_to_numpy(model(inputs))
        for place in (0, 4, 12):
            token_ids = inputs["token_ids"].copy()
            token_ids[0, place] += 1
            after = model({**inputs, "token_ids": token_ids})
            change = abs(ops.convert_to_numpy(after) - before).max(-1)
            np.testing.assert_array_less(change[0, :place], 1e-5)
            # the token, and those that look back at it
            assert (change[0, place : place + 3] > 0.01).all()
            np.testing.assert_array_less(change[1:], 1e-5)

    @pytest.mark.any_backend
    def test_the_paper_s_model(self):
        sizes = presets.shape("lm1b_d256_p32_h8")
        model = FixedHeadCausalLM(FixedHeadBackbone(**sizes, causal=True))
        counted = ParameterCount.of(EncoderShape(**sizes))
        assert model.count_params() == counted.encoder
        assert model.output.shape == (None, None, 32000)


class TestLoss:
    def by_hand(self, model, texts):
        """The mean of minus the logarithms of probabilities, and accuracy."""
        tokenizer = model.preprocessor.tokenizer
        losses, right = [], []
        for text in texts:
            ids = [tokenizer.start_token_id, *tokenizer(text)]
            ids.append(tokenizer.end_token_id)
            logits = model(
                {
                    "token_ids": np.array([ids[:-1]]),
                    "padding_mask": np.ones((1, len(ids) - 1)),
                }
            )
            logits = ops.convert_to_numpy(logits)[0].astype("float64")
            probabilities = scipy.special.softmax(logits, axis=-1)
            for i, token in enumerate(ids[1:]):
                losses.append(-np.log(probabilities[i, token]))
                right.append(logits[i].argmax() == token)
        return np.mean(losses), np.mean(right)

    @pytest.mark.any_backend
    def test_equals_numpy(self, model):
        model.compile(
            weighted_metrics=[
                keras_hub.metrics.Perplexity(from_logits=True),
                "sparse_categorical_accuracy",
            ]
        )
        loss, accuracy = self.by_hand(model, TEXTS)
        figures = model.evaluate(TEXTS, verbose=0, return_dict=True)
        assert figures["loss"] == pytest.approx(loss, rel=1e-5)
        assert figures["perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)
        assert figures["sparse_categorical_accuracy"] == pytest.approx(accuracy)

    @pytest.mark.any_backend
    def test_score(self, model):
        x, y, weights = tiny_models.as_numpy(model.preprocessor(TEXTS))
        losses = ops.convert_to_numpy(
            model.score(**x, scoring_mode="loss", target_ids=y)
        )
        assert losses.shape == (4, 13) and losses.dtype == "float32"
        for row, weight, text in zip(losses, weights, TEXTS):
            loss, _ = self.by_hand(model, [text])
            assert row[weight == 1].mean() == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(
            model.score(x["token_ids"][1:2, :9]),
            model(x)[1:2, :9],
            rtol=1e-5,
            atol=1e-4,
        )

    @pytest.mark.any_backend
    def test_score_of_nothing_to_score(self, model, inputs):
        with pytest.raises(ValueError, match="scoring_mode='sum'"):
            model.score(inputs["token_ids"], scoring_mode="sum")
        with pytest.raises(ValueError, match="target_ids=None"):
            model.score(inputs["token_ids"], scoring_mode="loss")


class TestCache:
    @pytest.mark.any_backend
    @pytest.mark.parametrize("attention_window", [None, 3])
    def test_parts_equal_the_whole(
        self, float64, make_causal_lm, inputs, attention_window
    ):
        model = make_causal_lm(
            attention_window=attention_window, dtype="float64"
        )
        inputs = whole(inputs)
        expected = model(inputs)
        logits = tokens_with_cache(model, inputs["token_ids"], [5, 1, 7])
        np.testing.assert_allclose(logits, expected, rtol=1e-11, atol=1e-11)

    @pytest.mark.any_backend
    def test_a_cache_of_other_layers_is_an_error(self, model, inputs):
        cache = (np.zeros((5, 2, 13, 15)),)
        with pytest.raises(ValueError, match="shorter"):
            model.call_with_cache(inputs["token_ids"], cache, 0)


@pytest.mark.any_backend
def test_a_backbone_that_is_not_causal_is_an_error(make_causal_lm):
    with pytest.raises(ValueError, match="`backbone` must be.*causal=False"):
        make_causal_lm(causal=False)


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
# KerasHub's CausalLM compiles itself when it is made.
@pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)
@pytest.mark.slow
def test_int8(make_causal_lm, inputs, tmp_path):
    model = make_causal_lm()
    inputs = whole(inputs)
    before = ops.convert_to_numpy(model(inputs))
    model.quantize("int8")
    assert model.backbone.token_embedding.embeddings.dtype == "int8"
    after = ops.convert_to_numpy(model(inputs))
    assert abs(after - before).max() < 0.1 * abs(before).max()
    np.testing.assert_allclose(
        tokens_with_cache(model, inputs["token_ids"], [5, 1, 7]),
        after,
        rtol=1e-4,
        atol=1e-3,
    )
    model.save(tmp_path / "int8.keras")
    again = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(again(inputs), after, rtol=1e-5, atol=1e-4)


@pytest.mark.any_backend
def test_lora(make_causal_lm, inputs):
    model = make_causal_lm()
    model.backbone.enable_lora(2)
    for variable in model.trainable_variables:
        if "lora_kernel_b" in variable.path:
            variable.assign(0.3 * np.ones(variable.shape))
    inputs = whole(inputs)
    np.testing.assert_allclose(
        tokens_with_cache(model, inputs["token_ids"], [5, 1, 7]),
        model(inputs),
        rtol=1e-4,
        atol=1e-3,
    )


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
