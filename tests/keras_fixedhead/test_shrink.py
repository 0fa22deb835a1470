"""Shrinking: exact where it can be, against NumPy's least squares elsewhere."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextClassifier, FixedHeadTextEmbedder
from keras_fixedhead.packing import Packing
from keras_fixedhead.shrink import shrink
from tests.tiny_models import as_numpy, assert_close, randomize, real

CHANNELS = np.array([0, 2, 3, 5, 8, 9, 12])  # of 19
NARROW = {"hidden_dim": 19}


def new_batches(vocabulary_size, count=3):
    """Batches of different lengths, with padding."""
    rng = np.random.default_rng(1)
    for rows, length in [(41, 13), (53, 7), (61, 3)][:count]:
        lengths = rng.integers(1, length + 1, (rows, 1))
        yield {
            "token_ids": rng.integers(0, vocabulary_size, (rows, length)),
            "segment_ids": rng.integers(0, 2, (rows, length)),
            "padding_mask": (np.arange(length) < lengths).astype("int32"),
        }


def in_few_channels(backbone):
    """Makes all states zero outside CHANNELS, and of mean zero within.

    The norms' means and variances over all channels are then those over
    CHANNELS, up to a factor that the smaller norms can learn.
    """

    def cut(weight):
        values = np.zeros(weight.shape)
        kept = np.array(weight)[..., CHANNELS]
        values[..., CHANNELS] = kept - kept.mean(-1, keepdims=True)
        weight.assign(values)

    for name in ("token", "position", "segment"):
        for weight in getattr(backbone, f"{name}_embedding").weights:
            cut(weight)
    norms = [backbone.embeddings_layer_norm]
    for block in backbone.transformer_layers:
        for dense in (block.attention.attention_output, block.output_dense):
            cut(dense.kernel)
            cut(dense.bias)
        norms += [block.attention_layer_norm, block.output_layer_norm]
    for number, norm in enumerate(norms):
        gamma = np.zeros(backbone.hidden_dim)
        gamma[CHANNELS] = 1.0 + 0.1 * number
        norm.gamma.assign(gamma)
        norm.beta.assign(np.zeros_like(gamma))
    return backbone


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {
            "causal": True,
            "attention_window": 3,
            "attention_scale": 0.4,
            "head_size": [[2, 3, 5], 7],
        },
    ],
)
def test_states_in_few_channels_are_reproduced(
    make_backbone, inputs, arguments
):
    backbone = in_few_channels(randomize(make_backbone(**NARROW, **arguments)))
    batches = new_batches(backbone.vocabulary_size, 2)
    shrunk, report = shrink(backbone, batches, len(CHANNELS))
    assert report.channels == tuple(CHANNELS)
    config = {**backbone.get_config(), "hidden_dim": len(CHANNELS)}
    assert shrunk.get_config() == config
    wanted = real(backbone(inputs)["sequence_output"], inputs)[:, CHANNELS]
    assert wanted.std() > 0.5
    assert_close(
        real(shrunk(inputs)["sequence_output"], inputs), wanted, atol=1e-4
    )
    np.testing.assert_allclose(report.state_r2, [1.0] * 3, atol=1e-6)
    np.testing.assert_allclose(report.logit_r2, [1.0] * 2, atol=1e-6)


def with_ones(x):
    return np.concatenate((x, np.ones_like(x[:, :1])), axis=1).astype("float64")


def with_bias(dense):
    return np.concatenate((as_numpy(dense.kernel), as_numpy(dense.bias)[None]))


def ridge_regression(x, y, ridge):
    """The last column of `x`, ones, is free; by augmented least squares."""
    penalty = np.sqrt(ridge * np.square(x[:, :-1]).sum(0).mean())
    penalties = penalty * np.eye(x.shape[1])[:-1]
    x = np.concatenate((x, penalties))
    y = np.concatenate((y, np.zeros((len(penalties), y.shape[1]))))
    return np.linalg.lstsq(x, y, rcond=None)[0]


def test_each_projection_is_the_least_squares_fit(make_backbone):
    backbone = randomize(make_backbone(**NARROW))
    batches = [*new_batches(backbone.vocabulary_size)]
    shrunk, report = shrink(backbone, batches, 7, ridge=1e-2)
    channels = list(report.channels)
    states, sums, hidden = [], [], []
    before, after = (x.transformer_layers[-1] for x in (backbone, shrunk))
    for batch in batches:
        packing = Packing(batch["padding_mask"])
        z, s = (
            model.encode_packed_states(batch)[0][-2]
            for model in (backbone, shrunk)
        )
        states.append((z, s))
        z = before.attention_layer_norm(
            z + before.attention(z, packing=packing)
        )
        s = after.attention_layer_norm(s + after.attention(s, packing=packing))
        z = z + before.output_dense(before.intermediate_dense(z))
        sums.append(as_numpy(z)[:, channels] - as_numpy(s))
        hidden.append(as_numpy(after.intermediate_dense(s)))
    # The output of the feed-forward layer, by the residual it should add.
    x, y = with_ones(np.concatenate(hidden)), np.concatenate(sums)
    sliced = with_bias(before.output_dense)[:, channels]
    np.testing.assert_allclose(
        with_bias(after.output_dense),
        sliced + ridge_regression(x, y - x @ sliced, 1e-2),
        atol=1e-4,
    )
    # Queries: the teacher's, of the state guessed from the student's.
    z, s = (np.concatenate([as_numpy(x) for x in xs]) for xs in zip(*states))
    s, sliced = with_ones(s), np.eye(20, 19)[[*channels, 19]]
    guess = sliced + ridge_regression(s, z - s @ sliced, 1e-2)
    query = before.attention.query
    wanted = guess @ as_numpy(query.kernel)
    wanted[-1] += as_numpy(query.bias)
    np.testing.assert_allclose(
        with_bias(after.attention.query), wanted, atol=5e-4
    )


def test_tables_keep_principal_components(make_backbone):
    backbone = randomize(make_backbone(**NARROW))
    batches = [*new_batches(backbone.vocabulary_size)]
    shrunk, report = shrink(backbone, batches, 7)
    token = as_numpy(backbone.token_embedding.embeddings)
    sums = backbone.sum_packed_embeddings
    rows = np.concatenate(
        [sums(x, Packing(x["padding_mask"])) for x in batches]
    )
    weighted = rows / len(rows) ** 0.5, token / len(token) ** 0.5
    components = np.linalg.svd(np.concatenate(weighted))[2][:7]
    # The nearest to the kept channels of all that tell as much.
    guess = token @ components.T @ components
    assert_close(
        shrunk.token_embedding.weights[0], guess[:, report.channels], atol=1e-5
    )


@pytest.mark.any_backend
def test_layers_that_change_nothing_are_dropped(make_embedder, vocabulary):
    embedder = randomize(make_embedder(num_layers=4))
    blocks = embedder.backbone.transformer_layers
    # These layers add nothing, and their norms repeat the one before.
    blocks[0].output_layer_norm.gamma.assign(np.ones(11))
    blocks[0].output_layer_norm.beta.assign(np.zeros(11))
    for block in blocks[1:3]:
        for dense in (block.attention.attention_output, block.output_dense):
            dense.kernel.assign(np.zeros(dense.kernel.shape))
            dense.bias.assign(np.zeros(11))
        for norm in (block.attention_layer_norm, block.output_layer_norm):
            norm.gamma.assign(np.ones(11))
            norm.beta.assign(np.zeros(11))
    batches = new_batches(len(vocabulary))
    shrunk, report = shrink(embedder, batches, num_layers=2)
    assert report.layers == (0, 3)
    assert isinstance(shrunk, FixedHeadTextEmbedder)
    texts = ["attention head", "ab, cd", "z"]
    np.testing.assert_allclose(
        shrunk.encode_text(texts), embedder.encode_text(texts), atol=1e-4
    )


def test_feed_forward_layers_make_up_for_dropped_ones(make_backbone):
    backbone = randomize(make_backbone(num_layers=3))
    batches = [*new_batches(backbone.vocabulary_size)]
    shrunk, report = shrink(backbone, batches, num_layers=2)
    assert len(report.layers) == 2 and report.state_r2[-1] > 0.3
    sizes = [block.head_size for block in shrunk.transformer_layers]
    assert sizes == [7, 7]


def test_bfloat16(make_embedder, vocabulary):
    embedder = randomize(make_embedder(dtype="mixed_bfloat16", **NARROW))
    shrunk, _ = shrink(embedder, new_batches(len(vocabulary), 1), 17)
    assert shrunk.dtype_policy.name == embedder.dtype_policy.name
    assert np.isfinite(shrunk.encode_text(["attention head"])).all()


def test_batches_are_not_all_in_memory(make_backbone):
    backbone = make_backbone()
    earlier = []

    def batches():
        for batch in new_batches(backbone.vocabulary_size):
            gc.collect()
            # The caller's loop still holds the one before.
            assert sum(x() is not None for x in earlier) <= 1
            earlier.append(weakref.ref(batch["token_ids"]))
            yield batch
            del batch

    shrink(backbone, batches(), 7)
    assert len(earlier) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_dim": 12}, "`hidden_dim` must be an integer from 1 to 11"),
        ({"num_layers": 3}, "`num_layers` must be an integer from 1 to 2"),
        ({}, "`hidden_dim` or `num_layers` must be smaller than now"),
        ({"hidden_dim": 7, "ridge": 0.0}, "`ridge` must be above 0"),
        ({"hidden_dim": 7, "batches": []}, "`batches` must have real tokens"),
    ],
)
def test_refused_arguments(make_backbone, arguments, message):
    backbone = make_backbone()
    batches = new_batches(backbone.vocabulary_size)
    with pytest.raises(ValueError, match=message):
        shrink(backbone, **{"batches": batches, **arguments})


def test_states_that_are_not_finite_are_refused(make_backbone):
    backbone = make_backbone()
    backbone.embeddings_layer_norm.beta.assign(np.full(11, np.nan))
    batches = new_batches(backbone.vocabulary_size)
    with pytest.raises(ValueError, match="`model` must have finite states"):
        shrink(backbone, batches, 7)


def test_refused_models(make_backbone, make_task, make_embedder):
    quantized = make_embedder()
    block = quantized.backbone.transformer_layers[0]
    block.attention.query.quantize("int8")
    for model, message in (
        (make_backbone(pooler=True), "without a pooler"),
        (
            FixedHeadTextEmbedder(make_backbone(), projection_dim=5),
            "without a projection",
        ),
        (make_task(FixedHeadTextClassifier, num_classes=3), "TextClassifier"),
        (keras.Sequential([keras.layers.Dense(3)]), "FixedHeadBackbone"),
        (quantized, "quantized"),
    ):
        with pytest.raises(ValueError, match=message):
            shrink(model, [], 7)
