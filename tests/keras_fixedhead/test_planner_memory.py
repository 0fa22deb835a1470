"""How much memory a step takes: what a compiler allots, and exact laws."""

import dataclasses

import keras
import pytest

from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.planner import (
    EncoderShape,
    ParameterCount,
    activation_bytes,
)

on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="only JAX says what XLA allots"
)

SMALL = EncoderShape(997, 2, 5, 113, 251, 59)
HALVES = (37, 37, 37, 59, 59)
BERT_BASE = EncoderShape(30522, 12, 12, 768, 3072, 64)
FIXED_512 = EncoderShape(30522, 24, 8, 512, 2048, 128)


def changed(**changes):
    return dataclasses.replace(SMALL, **changes)


def xla_memory(shape, batch_size, length, predictions=0):
    """What XLA says of a step with AdamW's update.

    Nothing runs: a compiled step of any size needs only its weights.
    """
    import jax

    model = FixedHeadBackbone(**dataclasses.asdict(shape))
    inputs = {name: (batch_size, length) for name in model.input}
    if predictions:
        model = FixedHeadMaskedLM(model)
        inputs["mask_positions"] = (batch_size, predictions)
    labels = jax.ShapeDtypeStruct((batch_size, predictions), "int32")
    inputs = {
        name: jax.ShapeDtypeStruct(size, "int32")
        for name, size in inputs.items()
    }

    def loss(weights, others, inputs, labels):
        outputs, others = model.stateless_call(
            weights, others, inputs, training=True
        )
        if not predictions:
            outputs = outputs["sequence_output"]
            return keras.ops.mean(keras.ops.square(outputs)), others
        losses = keras.ops.sparse_categorical_crossentropy(
            labels, outputs, from_logits=True
        )
        return keras.ops.mean(losses), others

    gradients = jax.value_and_grad(loss, has_aux=True)

    def structs(variables):
        return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]

    weights = structs(model.trainable_variables)
    others = structs(model.non_trainable_variables)
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(model.trainable_variables)

    def train(state, inputs, labels):
        weights, others, moments = state
        (loss, others), slopes = gradients(weights, others, inputs, labels)
        weights, moments = optimizer.stateless_apply(moments, slopes, weights)
        return loss, (weights, others, moments)

    # As Keras's trainer: the new state takes the place of the old.
    step = jax.jit(train, donate_argnums=0).lower(
        (weights, others, structs(optimizer.variables)), inputs, labels
    )
    return step.compile().memory_analysis()


@on_jax
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (changed(head_size=(HALVES, 59), dropout=0.0), (32, 131)),
        (changed(dropout=0.0), (7, 131, 7)),
        (SMALL, (32, 131, 19)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (changed(vocabulary_size=29989), (32, 131, 19)),
                (BERT_BASE, (8, 512, 77)),
                (FIXED_512, (32, 128, 20)),
            ]
        ),
    ],
)
def test_as_xla_allots(shape, sizes):
    step = xla_memory(shape, *sizes)
    expected = step.temp_size_in_bytes
    predicted = activation_bytes(shape, *sizes)
    print(
        f"\n{shape}, {sizes}: {predicted / 1e9:.2f} GB, XLA "
        f"{expected / 1e9:.2f} GB, ratio {predicted / expected:.3f}"
    )
    assert predicted == pytest.approx(expected, rel=0.1)
    parameters = ParameterCount.of(shape)
    trained = parameters.total if len(sizes) == 3 else parameters.encoder
    # Weights and moments; beside them inputs, seeds, the optimizer's scalars.
    assert step.argument_size_in_bytes == pytest.approx(12 * trained, rel=0.05)


def test_every_part_by_hand():
    shape = EncoderShape(31, 2, 3, 11, 23, (7, (2, 3, 5)), dropout=0.0)
    # Five rows of 13 tokens, of which 2 are predicted.
    tokens, scores, predictions = 5 * 13, 5 * 3 * 13 * 13, 5 * 2
    norms = 5 * 6 * tokens * 11
    attention = 4 * tokens * (21 + 10) + 2 * 3 * scores + scores
    feed_forward = 2 * 3 * tokens * 23
    numbers = norms + attention + feed_forward
    assert activation_bytes(shape, 5, 13) == 4 * numbers
    head = predictions * (7 * 11 + 3 * 31)
    assert activation_bytes(shape, 5, 13, 2) == 4 * (numbers + head)
    words = 2 * (5 * tokens * 11 + 2 * scores)
    dropping = dataclasses.replace(shape, dropout=0.1)
    assert activation_bytes(dropping, 5, 13) == 4 * (numbers + words)


@pytest.mark.parametrize(
    "numbers, message",
    [
        ((True, 13), "`batch_size`.*batch_size=True"),
        ((5, 513), "`sequence_length` must be .*from 1 to 512.*Received: s"),
        ((5, 13, -1), "`predictions_per_sequence`.*at least 0.*=-1"),
    ],
)
def test_bad_numbers(numbers, message):
    with pytest.raises(ValueError, match=message):
        activation_bytes(SMALL, *numbers)
