"""Language modeling: by hand, with a cache and without, and saved."""

import os
import subprocess
import sys

import keras
import keras_hub
import numpy as np
import pytest
import scipy.special
from keras import ops

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadCausalLM,
    FixedHeadCausalLMPreprocessor,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
    presets,
)
from keras_fixedhead.planner import EncoderShape, ParameterCount

TEXTS = ["attention heads.", "a b c d e f g", "head, head, head", "a tion."]
# KerasHub's CausalLM compiles itself when it is made.
compiles_itself = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


@pytest.fixture
def make_causal_lm(vocabulary, make_backbone):
    def make(preprocessor=True, noise=0.7, **arguments):
        model = FixedHeadCausalLM(
            make_backbone(**{"causal": True, "head_size": [5, 7], **arguments}),
            FixedHeadCausalLMPreprocessor(
                FixedHeadTokenizer(vocabulary), sequence_length=13
            )
            if preprocessor
            else None,
        )
        add_noise(model, noise)
        return model

    return make


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


def add_noise(model, factor):
    """Large enough that what is likely depends on what came before.

    Most of all on where it is, or a token would be followed by itself.
    """
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        noise = rng.normal(size=variable.shape).astype("float32")
        more = 5 if "position_embedding" in variable.path else 1
        variable.assign_add(more * factor * noise)


def without_segments(inputs):
    return {name: inputs[name] for name in ("token_ids", "padding_mask")}


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


class TestLogits:
    def test_equal_numpy(self, make_causal_lm, inputs):
        model = make_causal_lm()
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

    @pytest.mark.parametrize("fixed_size", [False, True])
    def test_packed_equal_padded(self, make_causal_lm, inputs, fixed_size):
        model = make_causal_lm()
        real = inputs["padding_mask"] == 1
        tensors = {
            name: ops.convert_to_tensor(x)
            for name, x in without_segments(inputs).items()
        }
        expected = ops.convert_to_numpy(model(tensors))
        logits, packing = model.predict_packed(tensors, fixed_size=fixed_size)
        logits = ops.convert_to_numpy(logits)
        if fixed_size:
            logits = logits[real.ravel()]
        np.testing.assert_allclose(logits, expected[real], rtol=1e-5, atol=1e-4)
        labels = ops.convert_to_numpy(packing.pack(tensors["token_ids"]))
        token_ids = inputs["token_ids"]
        np.testing.assert_array_equal(
            labels, token_ids.ravel() if fixed_size else token_ids[real]
        )

    @pytest.mark.any_backend
    def test_dropout_of_packed_tokens_is_for_training(
        self, make_causal_lm, inputs
    ):
        model = make_causal_lm(dropout=0.5)
        tensors = {k: ops.convert_to_tensor(x) for k, x in inputs.items()}
        one, other, dropped = (
            ops.convert_to_numpy(model.predict_packed(tensors, training)[0])
            for training in (False, False, True)
        )
        np.testing.assert_array_equal(one, other)
        assert abs(dropped - one).max() > 0.01

    def test_there_is_no_parameter_beside_the_backbone(self, make_causal_lm):
        model = make_causal_lm()
        assert model.count_params() == model.backbone.count_params()

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
    def test_equals_numpy(self, make_causal_lm):
        model = make_causal_lm()
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
    def test_score(self, make_causal_lm):
        model = make_causal_lm()
        x, y, weights = map_to_numpy(model.preprocessor(TEXTS))
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
    def test_score_of_nothing_to_score(self, make_causal_lm, prompts):
        model = make_causal_lm()
        with pytest.raises(ValueError, match="scoring_mode='sum'"):
            model.score(prompts["token_ids"], scoring_mode="sum")
        with pytest.raises(ValueError, match="target_ids=None"):
            model.score(prompts["token_ids"], scoring_mode="loss")

    @pytest.mark.slow
    def test_fit_on_texts(self, make_backbone, vocabulary):
        """What follows the second a is what followed the first."""
        model = FixedHeadCausalLM(
            make_backbone(
                causal=True, num_layers=1, hidden_dim=23, dropout=0.0
            ),
            FixedHeadCausalLMPreprocessor(
                FixedHeadTokenizer(vocabulary), sequence_length=13
            ),
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


class TestCache:
    @pytest.mark.parametrize(
        "attention_window",
        [None, pytest.param(3, marks=pytest.mark.any_backend)],
    )
    def test_parts_equal_the_whole(
        self, float64, make_causal_lm, inputs, attention_window
    ):
        model = make_causal_lm(
            attention_window=attention_window, dtype="float64"
        )
        token_ids = inputs["token_ids"][:3]
        expected = model(
            {"token_ids": token_ids, "padding_mask": np.ones((3, 13))}
        )
        assert keras.backend.standardize_dtype(expected.dtype) == "float64"
        logits = tokens_with_cache(model, token_ids, [5, *(8 * [1])])
        np.testing.assert_allclose(logits, expected, rtol=1e-11, atol=1e-11)

    @pytest.mark.any_backend
    def test_a_cache_of_other_layers_is_an_error(self, make_causal_lm, prompts):
        model = make_causal_lm()
        cache = (np.zeros((3, 2, 13, 15)),)
        with pytest.raises(ValueError, match="shorter"):
            model.call_with_cache(prompts["token_ids"], cache, 0)


class TestGenerate:
    @pytest.mark.parametrize(
        "compiled", [pytest.param(False, marks=pytest.mark.slow), True]
    )
    def test_equals_greedy_without_cache(
        self, make_causal_lm, prompts, compiled
    ):
        model = make_causal_lm(preprocessor=False)
        model.compile(sampler="greedy", run_eagerly=not compiled)
        expected, _ = continue_without_cache(model, prompts)
        for row, given in zip(expected, prompts["padding_mask"]):
            assert len(set(row[~given])) > 1
        outputs = model.generate(prompts, stop_token_ids=None)
        np.testing.assert_array_equal(outputs["token_ids"], expected)
        assert outputs["padding_mask"].all()

    def test_ends_at_the_end_token(self, make_causal_lm, prompts):
        model = make_causal_lm(preprocessor=False)
        model.compile(sampler="greedy", run_eagerly=True)
        whole, _ = continue_without_cache(model, prompts)
        # One that ends a row early, one that ends another later.
        stops = (int(whole[0, 6]), int(whole[1, 9]))
        prompts["token_ids"][2, 1] = stops[0]  # given, hence no end
        expected, real = continue_without_cache(model, prompts, stops)
        assert len(set(real.sum(1))) > 1 and not real.all()
        outputs = model.generate(prompts, stop_token_ids=stops)
        np.testing.assert_array_equal(outputs["padding_mask"], real)
        np.testing.assert_array_equal(
            outputs["token_ids"][real], expected[real]
        )
        if real[:, -1].any():
            return
        # All have ended: no more is computed.
        assert not outputs["token_ids"][:, real.any(0).sum() :].any()

    @pytest.mark.any_backend
    def test_texts(self, make_causal_lm, vocabulary):
        model = make_causal_lm()
        model.compile(sampler="greedy", run_eagerly=True)
        tokenizer = model.preprocessor.tokenizer
        texts = ["Attention a", "head, a b c", ""]
        given = model.preprocessor.generate_preprocess(texts, 11)
        given = {k: np.asarray(v) for k, v in given.items()}
        token_ids, real = continue_without_cache(
            model, given, [tokenizer.end_token_id]
        )

        def detokenize(masks):
            return [
                tokenizer.detokenize(
                    [
                        i
                        for i in row[mask]
                        if i not in tokenizer.special_token_ids
                    ]
                )
                for row, mask in zip(token_ids, masks)
            ]

        whole = detokenize(real)
        assert whole[1].startswith("head , a b c")
        assert model.generate(texts, max_length=11) == whole
        assert model.generate(texts[0], max_length=11) == whole[0]
        new = detokenize(real & ~given["padding_mask"])
        assert model.generate(texts, max_length=11, strip_prompt=True) == new

    @pytest.mark.any_backend
    def test_beams_equal_all_pairs(self, make_causal_lm, prompts, vocabulary):
        """As many beams as tokens: of two tokens the likeliest pair."""
        model = make_causal_lm(preprocessor=False)
        prompts = {
            "token_ids": prompts["token_ids"][:1, :7],
            "padding_mask": prompts["padding_mask"][:1, :7],
        }
        size = len(vocabulary)
        token_ids = np.repeat(prompts["token_ids"], size, axis=0)
        token_ids[:, 5] = np.arange(size)
        logits = model(
            {"token_ids": token_ids, "padding_mask": np.ones((size, 7))}
        )
        logits = ops.convert_to_numpy(logits)
        both = (
            scipy.special.log_softmax(logits[0, 4])[:, None]
            + scipy.special.log_softmax(logits[:, 5], axis=-1)
        )  # fmt: skip
        model.compile(
            sampler=keras_hub.samplers.BeamSampler(num_beams=size),
            run_eagerly=True,
        )
        outputs = model.generate(prompts, stop_token_ids=None)
        assert tuple(outputs["token_ids"][0, 5:]) == np.unravel_index(
            both.argmax(), both.shape
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["top_k", "top_p", "random", "beam"])
    def test_samplers(self, make_causal_lm, name):
        model = make_causal_lm()
        model.compile(sampler=name)
        for text, more in zip(TEXTS, model.generate(TEXTS)):
            assert more.split()[0] == text.split()[0].rstrip(",")[: len(more)]

    @pytest.mark.any_backend
    @pytest.mark.parametrize("row", [[0, 0, 0], [0, 1, 1], [1, 0, 1]], ids=str)
    def test_prompts_that_do_not_begin(self, make_causal_lm, row):
        model = make_causal_lm(preprocessor=False)
        inputs = {
            "token_ids": np.full((2, 3), 7),
            "padding_mask": np.array([[1, 1, 0], row]),
        }
        with pytest.raises(ValueError, match="`padding_mask` must be 1 at"):
            model.generate(inputs, stop_token_ids=None)

    def test_longer_than_positions(self, make_causal_lm):
        model = make_causal_lm()
        with pytest.raises(ValueError, match="17 tokens.* sequences of 19"):
            model.generate("a", max_length=19)


def map_to_numpy(batch):
    return keras.tree.map_structure(ops.convert_to_numpy, batch)


class TestPreprocessor:
    @pytest.fixture
    def preprocessor(self, vocabulary):
        return FixedHeadCausalLMPreprocessor(
            FixedHeadTokenizer(vocabulary), sequence_length=7
        )

    def check(self, batch, vocabulary):
        x, y, weights = map_to_numpy(batch)
        assert list(x) == ["token_ids", "padding_mask"]
        words = [
            [" ".join(vocabulary[i] for i in row) for row in ids]
            for ids in (x["token_ids"], y)
        ]
        assert words[0] == [
            "[CLS] head , a [SEP] [PAD] [PAD]",
            # cut
            "[CLS] a b c d e f",
            "[CLS] [SEP] [PAD] [PAD] [PAD] [PAD] [PAD]",
        ]
        assert words[1] == [
            "head , a [SEP] [PAD] [PAD] [PAD]",
            "a b c d e f [SEP]",
            "[SEP] [PAD] [PAD] [PAD] [PAD] [PAD] [PAD]",
        ]
        assert (x["padding_mask"].sum(1) == [5, 7, 2]).all()
        # Nothing follows the end.
        assert (weights.sum(1) == [4, 7, 1]).all()
        for mask in (x["padding_mask"], weights):
            assert (mask[:, 1:] <= mask[:, :-1]).all()

    def test_training(self, preprocessor, vocabulary):
        texts = ["head, a", "a b c d e f g h", ""]
        self.check(preprocessor(texts), vocabulary)

    @pytest.mark.skipif(
        keras.backend.backend() != "tensorflow",
        reason="the graph's tokenizer, on the backend that has graphs of it",
    )
    def test_training_in_a_graph(self, preprocessor, vocabulary):
        import tensorflow as tf

        texts = ["head, a", "a b c d e f g h", ""]
        data = tf.data.Dataset.from_tensor_slices(texts).batch(3)
        self.check(next(iter(data.map(preprocessor))), vocabulary)

    @pytest.mark.any_backend
    def test_generation_there_and_back(self, preprocessor, vocabulary):
        x = preprocessor.generate_preprocess(["head, a", "zebra"], 11)
        x = map_to_numpy(x)
        assert [[vocabulary[i] for i in row] for row in x["token_ids"]] == [
            "[CLS] head , a".split() + 7 * ["[PAD]"],
            "[CLS] z ##e ##b ##r ##a".split() + 5 * ["[PAD]"],
        ]
        assert x["padding_mask"].sum(1).tolist() == [4, 6]
        assert preprocessor.generate_postprocess(x) == ["head , a", "zebra"]

    @pytest.mark.any_backend
    def test_options(self, preprocessor, vocabulary):
        options = {
            "sequence_length": 5,
            "add_start_token": False,
            "add_end_token": False,
        }
        tokenizer = preprocessor.tokenizer
        made = FixedHeadCausalLMPreprocessor(tokenizer, **options)
        assert options.items() <= made.get_config().items()
        x, y, _ = map_to_numpy(made(["a b c"]))
        assert [vocabulary[i] for i in x["token_ids"][0]] == [
            *"abc",
            *(2 * ["[PAD]"]),
        ]
        assert [vocabulary[i] for i in y[0, :2]] == ["b", "c"]
        # The paper's length.
        default = FixedHeadCausalLMPreprocessor(tokenizer)
        assert default.sequence_length == 256


@pytest.mark.any_backend
def test_a_backbone_that_is_not_causal_is_an_error(make_causal_lm):
    with pytest.raises(ValueError, match="`backbone` must be.*causal=False"):
        make_causal_lm(causal=False)


def test_unknown_argument_is_an_error(make_backbone):
    with pytest.raises(TypeError, match="CausalLM has no argument `tied`"):
        FixedHeadCausalLM(make_backbone(causal=True), tied=True)


@pytest.mark.any_backend
def test_mixed_bfloat16(make_causal_lm, inputs, prompts):
    exact, mixed = (
        make_causal_lm(preprocessor=False, noise=0.2, dtype=dtype)
        for dtype in ("float32", "mixed_bfloat16")
    )
    mixed.set_weights(exact.get_weights())
    assert {str(weight.dtype) for weight in mixed.weights} == {"float32"}
    inputs = without_segments(inputs)
    logits = mixed(inputs)
    assert keras.backend.standardize_dtype(logits.dtype) == "bfloat16"
    expected = ops.convert_to_numpy(exact(inputs))
    real = inputs["padding_mask"] == 1
    logits = ops.convert_to_numpy(ops.cast(logits, "float32"))
    np.testing.assert_allclose(
        logits[real], expected[real], atol=0.02 * abs(expected).max()
    )
    mixed.compile(sampler="greedy", run_eagerly=True)
    outputs = mixed.generate(prompts, stop_token_ids=None)
    given = prompts["padding_mask"]
    np.testing.assert_array_equal(
        outputs["token_ids"][given], prompts["token_ids"][given]
    )


# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.slow
@compiles_itself
def test_int8(make_causal_lm, prompts, tmp_path):
    model = make_causal_lm(preprocessor=False)
    inputs = {**prompts, "padding_mask": np.ones((3, 13))}
    before = ops.convert_to_numpy(model(inputs))
    model.quantize("int8")
    assert model.backbone.token_embedding.embeddings.dtype == "int8"
    after = ops.convert_to_numpy(model(inputs))
    assert abs(after - before).max() < 0.1 * abs(before).max()
    np.testing.assert_allclose(
        tokens_with_cache(model, prompts["token_ids"], [5, 1, 7]),
        after,
        rtol=1e-4,
        atol=1e-3,
    )
    model.save(tmp_path / "int8.keras")
    again = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(again(inputs), after, rtol=1e-5, atol=1e-4)


@pytest.mark.any_backend
def test_lora(make_causal_lm, prompts):
    model = make_causal_lm(preprocessor=False)
    model.backbone.enable_lora(2)
    for variable in model.trainable_variables:
        if "lora_kernel_b" in variable.path:
            variable.assign(0.3 * np.ones(variable.shape))
    inputs = {**prompts, "padding_mask": np.ones((3, 13))}
    np.testing.assert_allclose(
        tokens_with_cache(model, prompts["token_ids"], [5, 1, 7]),
        model(inputs),
        rtol=1e-4,
        atol=1e-3,
    )


def assert_same_model(again, model, inputs):
    for one, other in zip(again.weights, model.weights, strict=True):
        assert one.path == other.path
    inputs = without_segments(inputs)
    np.testing.assert_allclose(
        again(inputs), model(inputs), rtol=1e-5, atol=1e-4
    )
    ours, theirs = again.preprocessor, model.preprocessor
    assert ours.sequence_length == theirs.sequence_length == 13
    assert ours.tokenizer.get_vocabulary() == theirs.tokenizer.get_vocabulary()


def test_get_config(make_causal_lm):
    model = make_causal_lm()
    again = FixedHeadCausalLM.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.backbone.causal is True


@compiles_itself
def test_keras_file(make_causal_lm, inputs, tmp_path):
    model = make_causal_lm()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_same_model(again, model, inputs)


@pytest.mark.any_backend
def test_preset(make_causal_lm, inputs, tmp_path):
    model = make_causal_lm()
    model.save_to_preset(tmp_path)
    for cls in (FixedHeadCausalLM, keras_hub.models.CausalLM):
        again = cls.from_preset(str(tmp_path))
        assert type(again) is FixedHeadCausalLM
        assert_same_model(again, model, inputs)
    # The encoder, in another task.
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path))
    np.testing.assert_allclose(
        embedder.backbone(inputs)["sequence_output"],
        model.backbone(inputs)["sequence_output"],
        atol=1e-5,
    )


@pytest.mark.any_backend
def test_preset_of_an_encoder(make_backbone, vocabulary, tmp_path):
    """It is not causal, but a model with its weights may be."""
    masked_lm = FixedHeadMaskedLM(make_backbone())
    masked_lm.save_to_preset(tmp_path)
    FixedHeadTokenizer(vocabulary).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="from_preset.*causal=True"):
        FixedHeadCausalLM.from_preset(str(tmp_path))
    backbone = FixedHeadBackbone.from_preset(str(tmp_path), causal=True)
    backbone.save_to_preset(tmp_path)
    again = FixedHeadCausalLM.from_preset(str(tmp_path))
    np.testing.assert_array_equal(
        again.backbone.token_embedding.embeddings,
        masked_lm.backbone.token_embedding.embeddings,
    )
    # As long as the encoder allows.
    assert again.preprocessor.sequence_length == 17


FRESH_PROCESS = """
import sys
import keras_fixedhead
model = keras_fixedhead.FixedHeadCausalLM.from_preset(sys.argv[1])
model.compile(sampler="greedy")
print(model.generate("head, a", max_length=11))
"""


@pytest.mark.slow
def test_preset_in_a_fresh_process(make_causal_lm, tmp_path):
    model = make_causal_lm()
    model.save_to_preset(tmp_path)
    printed = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, tmp_path],
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
    ).stdout
    model.compile(sampler="greedy")
    assert printed.strip() == model.generate("head, a", max_length=11)
