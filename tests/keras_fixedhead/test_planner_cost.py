"""Costs and parameters: by hand, as a compiler counts, as Keras holds."""

import json
import math

import keras
import numpy as np
import pytest

from keras_fixedhead import presets
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.planner import (
    Cost,
    EncoderShape,
    ParameterCount,
    activation_bytes,
    encoder_flops,
    masked_lm_flops,
)


def bytes_of(backbone):
    sizes = {"float32": 4, "bfloat16": 2, "int8": 1}
    return sum(math.prod(v.shape) * sizes[v.dtype] for v in backbone.weights)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.slow
def test_bytes_of_weights(make_backbone):
    arguments = {"head_size": [5, 2], "pooler": True}
    backbone = make_backbone(**arguments)
    expected = Cost.of(backbone, 13).weight_bytes
    half = make_backbone(**arguments, dtype="bfloat16")
    small = make_backbone(**arguments)
    small.quantize("int8")
    assert expected == {
        "float32": bytes_of(backbone),
        "bfloat16": bytes_of(half),
        "int8": bytes_of(small),
    }


@pytest.mark.parametrize(
    ("head_size", "length", "under", "embedding_under"),
    [
        ([(5, 2, 11), 13], 11, 2, False),
        (11, 11, 0, False),
        # d = 11: no head size gives the logits a higher rank.
        (13, 13, 0, True),
    ],
)
def test_heads_under_the_length(
    make_backbone, head_size, length, under, embedding_under
):
    cost = Cost.of(make_backbone(head_size=head_size), length)
    assert (cost.heads, cost.heads_under_length) == (6, under)
    assert cost.embedding_under_length == embedding_under
    assert cost.bottlenecked == (under > 0 or embedding_under)


def test_a_shape_of_the_paper():
    shape = EncoderShape(**presets.shape("fixed_d512_p128_h8"))
    record = json.loads(json.dumps(Cost.of(shape, 128).as_dict()))
    # Dense, norm, a bias for each word; two for the next sentence.
    heads = 513 * 512 + 2 * 512 + 30522 + 2 * 513
    # 24 layers: projections, scores and sums, feed-forward; 128 tokens.
    layer = 8 * 512 * 1024 + 4 * 128 * 1024 + 4 * 512 * 4096
    assert sum(record.pop("parameters_by_part").values()) == 167_690_044
    assert record.pop("weight_bytes")["float32"] == 4 * (167_690_044 - heads)
    assert record == {
        "parameters": 167_690_044,
        "encoder_parameters": 167_690_044 - heads,
        "shape": vars(shape),
        "sequence_length": 128,
        "forward_flops": 128 * 24 * layer,
        "training_flops": 3 * 128 * 24 * layer,
        "batch_size": 32,
        # BERT predicts 20 of 128 tokens.
        "activation_bytes": activation_bytes(shape, 32, 128, 20),
        "state_bytes": 16 * 167_690_044,
        "document_bytes": {"float32": 2048, "float16": 1024, "int8": 512},
        "heads": 24 * 8,
        "smallest_head_size": 128,
        "heads_under_length": 0,
        "depth_threshold": pytest.approx(5.68, abs=0.005),
        "fitted_depth_threshold": pytest.approx(21.6, abs=0.05),
        "embedding_under_length": False,
        "bottlenecked": False,
    }


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("head_size", "length", "message"),
    [
        (7, 0, "`sequence_length` must.*Received"),
        (7, 2.5, "`sequence_length` must.*Received"),
        (7, 513, "`sequence_length` must.*Received"),
        ((7, 5, 3), 13, "`head_size` must be a positive integer, or one"),
        ((0, 5), 13, "`head_size`.*=0"),
    ],
)
def test_bad_sizes(head_size, length, message):
    with pytest.raises(ValueError, match=message):
        Cost.of(EncoderShape(97, 2, 3, 11, 23, head_size), length)
    with pytest.raises(ValueError, match="`model` must be.*Received.*'bert'"):
        ParameterCount.of("bert")


def products_flops(shapes):
    """A vector times a matrix `[rows, columns]` is as many multiply-adds."""
    return sum(2 * rows * columns for rows, columns in shapes)


@pytest.mark.parametrize("head_size", [7, [5, 2]])
def test_every_product_by_hand(make_backbone, head_size):
    backbone = make_backbone(head_size=head_size)
    shapes = []
    for size in [7, 7] if head_size == 7 else head_size:
        # Three heads, d = 11, feed-forward 23, 13 tokens to attend to.
        last = [(11, 3 * size), *3 * [(size, 13), (13, size)]]
        last += [(3 * size, 11), (11, 23), (23, 11)]
        shapes += [*last, *2 * [(11, 3 * size)]]  # keys and values
    assert encoder_flops(backbone, 13) == products_flops(shapes)
    assert Cost.of(backbone, 13).forward_flops == 13 * products_flops(shapes)
    # All of the last block but its keys and values, for a half of the tokens.
    saved = encoder_flops(backbone, 13) - encoder_flops(backbone, 13, 0.5)
    assert saved == products_flops(last) / 2
    head = [(11, 11), (11, backbone.vocabulary_size)]
    assert masked_lm_flops(backbone) == products_flops(head)


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX counts operations, too"
)
def test_as_the_compiler_counts(make_backbone):
    import jax

    model = FixedHeadMaskedLM(
        make_backbone(
            hidden_dim=113, intermediate_dim=251, head_size=59, num_heads=5
        )
    )
    encoder, head = model.backbone, model.masked_lm_head

    def flops(layer, *inputs):
        def call(*inputs):
            values = [v.value for v in layer.trainable_variables]
            others = [v.value for v in layer.non_trainable_variables]
            return layer.stateless_call(values, others, *inputs)[0]

        return jax.jit(call).lower(*inputs).cost_analysis()["flops"]

    ids = np.ones([2, 17], "int32")
    total = flops(encoder, {name: ids for name in encoder.input})
    # It counts what is no product, too: norms, softmax, activations.
    assert 1.0 < total / (2 * 17 * encoder_flops(encoder, 17)) < 1.03
    total = flops(head, np.ones([2, 17, 113], "float32"), ids[:, :7])
    assert 1.0 < total / (2 * 7 * masked_lm_flops(encoder)) < 1.1


# Layers by the part of the parameters that they hold.
PARTS = {
    "intermediate_dense": "feed_forward",
    "output_dense": "feed_forward",
    "attention_layer_norm": "norms",
    "output_layer_norm": "norms",
    "embeddings_layer_norm": "norms",
    "pooled_dense": "pooler",
    "next_sentence_dense": "next_sentence_head",
}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("head_size", "pooler"), [(7, False), ([(5, 2, 3), 13], True), (None, True)]
)
def test_parameters_by_part(make_backbone, head_size, pooler):
    # Sizes that are different primes; heads of different sizes, too.
    backbone = make_backbone(head_size=head_size, pooler=pooler)
    model = FixedHeadMaskedLM(backbone, next_sentence=pooler)
    found = dict.fromkeys(ParameterCount.__dataclass_fields__, 0)
    for weight in model.weights:
        *path, layer, _ = weight.path.split("/")
        part = PARTS.get(layer, layer)
        if "masked_lm_head" in [*path, layer]:
            part = "masked_lm_head"
        found[part] += math.prod(weight.shape)
    counted = ParameterCount.of(backbone)
    assert vars(counted) == found
    assert counted.encoder == backbone.count_params()
    assert counted.total == model.count_params()
    assert EncoderShape.of(backbone).attention_widths == tuple(
        layer.attention.query.units for layer in backbone.transformer_layers
    )
