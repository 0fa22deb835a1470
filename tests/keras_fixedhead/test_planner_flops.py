"""Operations of shapes: every product by hand, and as a compiler counts."""

import keras
import numpy as np
import pytest

from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.planner import (
    EncoderShape,
    encoder_flops,
    forward_flops,
    masked_lm_flops,
    training_flops,
)


def products_flops(shapes):
    """A vector times a matrix `[rows, columns]` is as many multiply-adds."""
    return sum(2 * rows * columns for rows, columns in shapes)


@pytest.mark.parametrize("head_size", [7, [5, 2]])
def test_every_product_by_hand(make_backbone, head_size):
    backbone = make_backbone(head_size=head_size)
    shapes = []
    for size in [7, 7] if head_size == 7 else head_size:
        # Three heads, d = 11, feed-forward 23, 13 tokens to attend to.
        shapes += 3 * [(11, 3 * size)]  # queries, keys, values
        shapes += 3 * [(size, 13), (13, size)]  # scores, sums of values
        shapes += [(3 * size, 11), (11, 23), (23, 11)]
    assert encoder_flops(backbone, 13) == products_flops(shapes)
    # All of the last block but its keys and values, for a half of the tokens.
    size = backbone.transformer_layers[-1].attention.head_size
    shapes = [(11, 3 * size), *3 * [(size, 13), (13, size)]]
    shapes += [(3 * size, 11), (11, 23), (23, 11)]
    saved = encoder_flops(backbone, 13) - encoder_flops(backbone, 13, 0.5)
    assert saved == products_flops(shapes) / 2
    head = [(11, 11), (11, backbone.vocabulary_size)]
    assert masked_lm_flops(backbone) == products_flops(head)


@pytest.mark.parametrize("head_size", [7, [5, 2], [(5, 2, 3), 13], None])
def test_of_a_shape_as_of_the_model(make_backbone, head_size):
    backbone = make_backbone(head_size=head_size)
    shape = EncoderShape.of(backbone)
    widths = [
        layer.attention.query.units for layer in backbone.transformer_layers
    ]
    assert list(shape.attention_widths) == widths
    for flops in encoder_flops, forward_flops, training_flops:
        assert flops(shape, 13) == flops(backbone, 13)
    assert encoder_flops(shape, 13, 0.5) == encoder_flops(backbone, 13, 0.5)
    assert masked_lm_flops(shape) == masked_lm_flops(backbone)


def test_of_sequences(make_backbone):
    backbone = make_backbone()
    assert forward_flops(backbone, 13) == 13 * encoder_flops(backbone, 13)
    assert training_flops(backbone, 13) == 39 * encoder_flops(backbone, 13)


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
