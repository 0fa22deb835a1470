"""Growth: what the first and the second step of training change."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fixedhead import FixedHeadMaskedLM
from keras_fixedhead.growth import grow_head_size, grow_heads
from tests.tiny_models import randomize


def gradients(model, inputs):
    """Of the sum of sines at real tokens, by the variables' paths."""
    mask = inputs["padding_mask"][..., None].astype("float32")

    def loss_of(outputs):
        return ops.sum(ops.sin(outputs["sequence_output"]) * mask)

    values = [v.value for v in model.trainable_variables]
    if keras.backend.backend() == "jax":
        import jax

        def loss(trainable):
            state = [v.value for v in model.non_trainable_variables]
            return loss_of(model.stateless_call(trainable, state, inputs)[0])

        computed = jax.grad(loss)(values)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(model(inputs))
        computed = [
            tf.convert_to_tensor(g) for g in tape.gradient(loss, values)
        ]
    return {
        variable.path: ops.convert_to_numpy(gradient)
        for variable, gradient in zip(model.trainable_variables, computed)
    }


def new_parts(layer, gradient_of, old_sizes):
    """The gradients of what is new in a block's attention, by name."""
    attention = layer.attention
    new = np.ones(sum(attention.head_sizes), bool)
    start = 0
    for size, new_size in zip(old_sizes, attention.head_sizes):
        new[start : start + size] = False
        start += new_size
    parts = {}
    for name in ("query", "key", "value", "attention_output"):
        projection = getattr(attention, name)
        kernel = gradient_of[projection.kernel.path]
        if name == "attention_output":
            parts["output/kernel"] = kernel[new]
            continue
        parts[f"{name}/kernel"] = kernel[:, new]
        # What is added to all keys of a head changes no attention.
        if name != "key":
            parts[f"{name}/bias"] = gradient_of[projection.bias.path][new]
    return parts


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("grow", "first"),
    [
        (
            lambda model: grow_head_size(model, 19),
            {"query/kernel", "query/bias", "output/kernel"},
        ),
        (lambda model: grow_heads(model, 5), {"output/kernel"}),
    ],
)
def test_gradients_of_what_is_new(make_backbone, inputs, grow, first):
    grown = grow(randomize(make_backbone(dropout=0.0)))
    gradient_of = gradients(grown, inputs)
    for layer in grown.transformer_layers:
        for name, part in new_parts(layer, gradient_of, (7, 7, 7)).items():
            assert ((part != 0) == (name in first)).all(), name
    for variable in grown.trainable_variables:
        step = 0.01 * gradient_of[variable.path]
        variable.assign(ops.convert_to_numpy(variable) - step)
    gradient_of = gradients(grown, inputs)
    for layer in grown.transformer_layers:
        for name, part in new_parts(layer, gradient_of, (7, 7, 7)).items():
            assert (part != 0).all(), name


@pytest.mark.slow
@pytest.mark.any_backend
def test_training_what_is_grown_leaves_the_other(make_task, masked_inputs):
    masked_lm = make_task(
        FixedHeadMaskedLM, backbone={"pooler": True}, next_sentence=True
    )
    weights = [w.copy() for w in randomize(masked_lm).get_weights()]
    grown = grow_heads(masked_lm, 5)
    labels = {
        "masked_lm": np.ones((5, 3), "int32"),
        "next_sentence": np.ones(5, "int32"),
    }
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    grown.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss={"masked_lm": loss, "next_sentence": loss},
        weighted_metrics=[],
    )
    grown.preprocessor = None
    grown.fit(masked_inputs, labels, shuffle=False, verbose=0)
    for now, then in zip(masked_lm.get_weights(), weights):
        np.testing.assert_array_equal(now, then)
