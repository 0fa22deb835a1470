"""The attention report, against NumPy, head by head and row by row."""

import numpy as np
import pytest
import scipy.stats
from keras import ops

from keras_fixedhead import FixedHeadMaskedLM, FixedHeadMaskedLMPreprocessor
from keras_fixedhead.diagnostics import attention_report
from keras_fixedhead.growth import grow_head_size


def randomize(model):
    """Large enough for attention that is far from uniform."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return model


def numpy_figures(query, key, places, window):
    """One head on one sequence; only its real tokens."""
    length = len(places)
    logits = np.empty((length, length))
    for i in range(length):
        for j in range(length):
            logits[i, j] = query[i] @ key[j] / np.sqrt(len(query[i]))
    scores = np.zeros_like(logits)
    for i in range(length):
        weights = np.exp(logits[i])
        if window is not None:
            weights[abs(places - places[i]) >= window] = 0.0
        scores[i] = weights / weights.sum()
    epsilon = np.finfo("float32").eps
    figures = {}
    for name, matrix in (("logit", logits), ("attention", scores)):
        values = np.linalg.svd(matrix, compute_uv=False)
        figures[f"{name}_rank"] = np.linalg.matrix_rank(
            matrix, tol=values[0] * length * epsilon
        )
        figures[f"{name}_effective_rank"] = np.exp(scipy.stats.entropy(values))
    figures["entropy"] = np.mean([scipy.stats.entropy(row) for row in scores])
    return figures


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
    ("head_size", "window"), [([2, 5], None), ([[2, 3, 7], 5], 3)]
)
def test_equals_numpy(make_backbone, inputs, head_size, window):
    backbone = randomize(
        make_backbone(head_size=head_size, attention_window=window)
    )
    report = attention_report(backbone, inputs, batch_size=2)
    assert report.sequences == 4  # one has no real token
    rows = iter(report.rows())
    real = inputs["padding_mask"] == 1
    for layer, (attention, x) in enumerate(layer_inputs(backbone, inputs)):
        query, key = (
            x @ ops.convert_to_numpy(dense.kernel).astype("float64")
            + ops.convert_to_numpy(dense.bias)
            for dense in (attention.query, attention.key)
        )
        start = 0
        for head, size in enumerate(attention.head_sizes):
            columns = slice(start, start + size)
            start += size
            figures = [
                numpy_figures(
                    query[i, mask, columns],
                    key[i, mask, columns],
                    np.flatnonzero(mask),
                    window,
                )
                for i, mask in enumerate(real)
                if mask.any()
            ]
            row = next(rows)
            assert row.pop("layer") == layer
            assert row.pop("head") == head
            assert row.pop("head_size") == size
            assert row.pop("mean_length") == (13 + 1 + 5 + 8) / 4
            assert row.pop("longest_length") == 13
            assert row.pop("bottleneck") is True
            assert row == pytest.approx(
                {
                    name: np.mean([f[name] for f in figures])
                    for name in figures[0]
                },
                rel=1e-4,
            )
    assert next(rows, None) is None


def test_uniform_attention(make_backbone, inputs):
    """Queries of zero: logits of rank 0, scores that a person can tell."""
    backbone = randomize(make_backbone())
    for layer in backbone.transformer_layers:
        for weight in layer.attention.query.weights:
            weight.assign(np.zeros(weight.shape))
    for row in attention_report(backbone, inputs).rows():
        assert row["logit_rank"] == row["logit_effective_rank"] == 0.0
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


def test_growing_leaves_attention_and_lifts_the_bottleneck(
    make_backbone, inputs
):
    backbone = randomize(make_backbone(head_size=[3, 5]))
    before = attention_report(backbone, inputs)
    after = attention_report(grow_head_size(backbone, [11, 13]), inputs)
    sizes = {"head_size", "bottleneck"}
    for row, other in zip(after.rows(), before.rows()):
        assert row["logit_rank"] <= other["head_size"] < row["head_size"]
        assert other["bottleneck"] is True
        assert row["bottleneck"] is (row["head_size"] < 13)
        assert {k: row[k] for k in row.keys() - sizes} == pytest.approx(
            {k: other[k] for k in other.keys() - sizes}, rel=1e-4
        )


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


def test_table(make_backbone, inputs):
    report = attention_report(make_backbone(head_size=[[2, 3, 5], 13]), inputs)
    first, header, *layers = str(report).splitlines()
    assert first.startswith("4 sequences of 6.8 tokens, the longest of 13")
    assert [line.split()[:4] for line in layers] == [
        ["0", "3", "2-5", "yes"],
        ["1", "3", "13", "no"],
    ]
    assert {len(line) for line in layers} == {len(header)}
    ranks = [head.logit_rank for head in report.heads[:3]]
    assert float(layers[0].split()[4]) == pytest.approx(np.mean(ranks), abs=0.1)


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


def test_inputs_that_cannot_be_taken(make_backbone, make_embedder, inputs):
    with pytest.raises(ValueError, match="FixedHeadBackbone or a task"):
        attention_report(None, inputs)
    with pytest.raises(ValueError, match="Backbone.*preprocessor=None"):
        attention_report(make_backbone(), ["a"])
    embedder = make_embedder()
    masked_lm = FixedHeadMaskedLM(
        embedder.backbone,
        FixedHeadMaskedLMPreprocessor(
            embedder.preprocessor.tokenizer, sequence_length=13
        ),
    )
    with pytest.raises(ValueError, match="Texts need.*FixedHeadMaskedLM"):
        attention_report(masked_lm, ["a b c"])
    with pytest.raises(ValueError, match="a dictionary with token_ids"):
        attention_report(embedder, inputs["token_ids"])
