"""The attention report, against NumPy, head by head and row by row."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
    FixedMultiHeadAttention,
)
from keras_fixedhead.diagnostics import attention_report
from keras_fixedhead.growth import grow_head_size
from tests.keras_fixedhead.attention_by_hand import (
    check,
    expected_rows,
    numpy_dense,
    randomize,
)


def layer_inputs(backbone, inputs):
    """Each attention layer, and what it sees."""
    tokens = backbone.token_embedding(inputs["token_ids"])
    x = tokens + backbone.position_embedding(tokens)
    x = x + backbone.segment_embedding(inputs["segment_ids"])
    x = backbone.embeddings_layer_norm(x)
    for layer in backbone.transformer_layers:
        yield layer.attention, ops.convert_to_numpy(x).astype("float64")
        x = layer(x, padding_mask=inputs["padding_mask"])


@pytest.mark.parametrize(
    ("head_size", "window", "scale"),
    [([2, 5], None, None), ([[2, 3, 7], 5], 3, 0.7)],
)
def test_equals_numpy(make_backbone, inputs, head_size, window, scale):
    backbone = randomize(
        make_backbone(
            head_size=head_size, attention_window=window, attention_scale=scale
        )
    )
    report = attention_report(backbone, inputs, batch_size=2)
    assert report.sequences == 4  # one has no real token
    real = inputs["padding_mask"] == 1
    rows = np.flatnonzero(real.any(1))
    places = [2 * (np.flatnonzero(real[row]),) for row in rows]

    def allowed(queries, keys):
        return abs(queries[:, None] - keys) < (window or np.inf)

    check(
        report,
        [
            expected_rows(
                *(
                    numpy_dense(dense, x[rows])
                    for dense in (layer.query, layer.key, layer.value)
                ),
                layer.head_sizes,
                places,
                allowed,
                scale,
            )
            for layer, x in layer_inputs(backbone, inputs)
        ],
    )
    lengths = {(h.mean_length, h.longest_length) for h in report.heads}
    assert lengths == {((13 + 1 + 5 + 8) / 4, 13)}
    assert {head.bottleneck for head in report.heads} == {True}


def test_uniform_attention(make_backbone, inputs):
    """Queries of zero: logits of rank 0, scores that a person can tell."""
    backbone = randomize(make_backbone())
    for layer in backbone.transformer_layers:
        for weight in layer.attention.query.weights:
            weight.assign(np.zeros(weight.shape))
    for row in attention_report(backbone, inputs).rows():
        assert row["logit_rank"] == row["logit_effective_rank"] == 0.0
        assert row["condition_number"] == np.inf
        assert row["attention_rank"] == 1.0
        assert row["attention_effective_rank"] == pytest.approx(1.0)
        expected = np.mean(np.log([13, 1, 5, 8]))
        assert row["entropy"] == pytest.approx(expected)


def test_padding_does_not_count(make_backbone, inputs):
    backbone = randomize(make_backbone(attention_window=3))
    changed = {k: np.pad(v, ((0, 1), (0, 4))) for k, v in inputs.items()}
    real = changed["padding_mask"] == 1
    changed["token_ids"] = np.where(real, changed["token_ids"], 3)
    expected = attention_report(backbone, inputs)
    report = attention_report(backbone, changed, batch_size=4)
    assert report.sequences == expected.sequences
    for row, other in zip(report.rows(), expected.rows()):
        assert row == pytest.approx(other, rel=1e-4)


@pytest.mark.any_backend
def test_growing_leaves_attention_and_lifts_the_bottleneck(
    make_backbone, inputs
):
    backbone = randomize(make_backbone(head_size=[3, 5]))
    before = attention_report(backbone, inputs)
    after = attention_report(grow_head_size(backbone, [11, 13]), inputs)
    sizes = {"head_size", "bottleneck", "condition_number"}
    for row, other in zip(after.rows(), before.rows()):
        assert row["logit_rank"] <= other["head_size"] < row["head_size"]
        assert other["bottleneck"] is True
        assert row["bottleneck"] is (row["head_size"] < 13)
        assert {k: row[k] for k in row.keys() - sizes} == pytest.approx(
            {k: other[k] for k in other.keys() - sizes}, rel=1e-4
        )


@pytest.mark.any_backend
def test_texts(make_embedder):
    embedder = randomize(make_embedder())
    texts = ["attention head", "a b c"]
    report = attention_report(embedder, texts)
    # [CLS] and [SEP] are real tokens: attention, head; a, b, c.
    assert report.heads[0].mean_length == 4.5
    assert report.heads[0].longest_length == 5
    assert report.rows() == attention_report(
        embedder, embedder.preprocessor(texts)
    ).rows()  # fmt: skip
    assert attention_report(embedder, "a b c").sequences == 1


@pytest.mark.any_backend
def test_table(make_backbone, inputs):
    report = attention_report(make_backbone(head_size=[[2, 3, 5], 13]), inputs)
    assert report.summary.startswith(
        "4 sequences of 6.8 tokens, the longest of 13.\n3 of 6 heads are "
    )
    for size, found in ((13, "No head of 6 is"), (2, "All 6 heads are")):
        other = attention_report(make_backbone(head_size=size), inputs)
        assert other.summary.splitlines()[1].startswith(found)
    lines = [line.split() for line in str(report).splitlines()]
    layers = [line for line in lines if line[:1] in (["0"], ["1"])]
    assert [line[:4] for line in layers] == [
        ["0", "3", "2-5", "yes"],
        ["1", "3", "13", "no"],
    ]
    ranks = [head.logit_rank for head in report.heads[:3]]
    assert float(layers[0][4]) == pytest.approx(np.mean(ranks), abs=0.1)


@pytest.mark.any_backend
def test_nothing_of_the_model_changes(make_embedder, tmp_path):
    embedder = randomize(make_embedder())
    inputs = embedder.preprocessor(["a b c"])
    config = embedder.get_config()
    weights = [ops.convert_to_numpy(weight) for weight in embedder.weights]
    embeddings = ops.convert_to_numpy(embedder(inputs))
    layers = {id(layer) for layer in embedder._flatten_layers()}
    summaries = [], []
    embedder.backbone.summary(print_fn=summaries[0].append)
    attention_report(embedder, inputs)
    embedder.backbone.summary(print_fn=summaries[1].append)
    assert summaries[0] == summaries[1]
    assert {id(layer) for layer in embedder._flatten_layers()} == layers
    assert embedder.get_config() == config
    for weight, before in zip(embedder.weights, weights):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), before)
    embedder.save_to_preset(str(tmp_path))
    again = type(embedder).from_preset(str(tmp_path))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(again(inputs)), embeddings
    )


def test_weights_that_are_not_finite(make_backbone, inputs):
    backbone = make_backbone()
    bias = backbone.transformer_layers[1].attention.query.bias
    bias.assign(np.full(bias.shape, np.nan))
    report = attention_report(backbone, inputs)
    assert np.isfinite([head.entropy for head in report.heads_of(0)]).all()
    for head in report.heads_of(1):
        values = dataclasses.astuple(head)[6:]
        assert len(values) == 6 and np.isnan(values).all()
    assert np.isnan(report.layers[1].condition_number)


@pytest.mark.slow
# Keras warns of every layer that has nothing to quantize.
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_int8_is_reported(make_backbone, inputs):
    backbone = randomize(make_backbone())
    expected = attention_report(backbone, inputs)
    backbone.quantize("int8")
    report = attention_report(backbone, inputs)
    for head, other in zip(report.heads, expected.heads):
        assert abs(head.logit_rank - other.logit_rank) < 1.0
        assert head.entropy == pytest.approx(other.entropy, abs=0.1)
        assert head.entropy != other.entropy


def test_models_and_texts_that_cannot_be_taken(
    make_backbone, make_embedder, inputs
):
    embedder = make_embedder()
    masked_lm = FixedHeadMaskedLM(
        embedder.backbone,
        FixedHeadMaskedLMPreprocessor(
            embedder.preprocessor.tokenizer, sequence_length=13
        ),
    )
    unbuilt = keras.Sequential([FixedMultiHeadAttention(2)])
    for model, x, message in (
        (None, inputs, "built Keras model.*model=None"),
        (unbuilt, inputs, "built Keras model"),
        (make_backbone(), ["a"], "Backbone.*preprocessor=None"),
        (masked_lm, ["a b c"], "Texts need.*FixedHeadMaskedLM"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_report(model, x)
    with pytest.raises(ValueError, match="`batch_size` must be.*=0"):
        attention_report(embedder, inputs, batch_size=0)


def test_inputs_that_cannot_be_taken(make_backbone, inputs):
    backbone = make_backbone()
    mask = inputs["padding_mask"]
    for x, message in (
        (inputs["token_ids"], "a dictionary with token_ids"),
        ({"token_ids": inputs["token_ids"]}, "with token_ids.*'token_ids'"),
        ({**inputs, "padding_mask": mask[:2]}, "the same number of rows"),
        ({**inputs, "segment_ids": None}, "optional inputs too.*NoneType"),
        ({k: v[:0] for k, v in inputs.items()}, "at least one.*0, 13"),
        ({**inputs, "padding_mask": 0 * mask}, "real token.*5 rows without"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_report(backbone, x)
    x = keras.Input((4, 6))
    model = keras.Model(x, FixedMultiHeadAttention(2, head_size=3)(x))
    for values in (np.ones((2, 4)), np.ones((2, 4, 5))):
        with pytest.raises(
            ValueError, match=r"xpected shape.*\(None, 4, 6\).*\(2, 4"
        ):
            attention_report(model, values)
