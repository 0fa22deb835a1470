"""Parameters of shapes: those of the Keras models, part by part."""

import math

import keras
import keras_hub
import pytest

from keras_fixedhead import FixedHeadBackbone, FixedHeadMaskedLM, presets
from keras_fixedhead.planner import EncoderShape, ParameterCount

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def forgotten():
    """Afterwards Keras gives no values to what has been left without."""
    yield
    # It would when the next model is built.
    keras.utils.clear_session()


@pytest.fixture
def without_memory(forgotten, monkeypatch):
    """Models whose weights have shapes and no values."""
    # Of the optimizer that KerasHub compiles with, a variable wants a value.
    monkeypatch.setattr(
        keras_hub.models.MaskedLM, "compile", lambda *args, **kwargs: None
    )
    with keras.StatelessScope(initialize_variables=False):
        yield


def parts_of(model):
    """Parameters by part, from the paths of the model's weights."""
    counted = dict.fromkeys(ParameterCount.__dataclass_fields__, 0)
    layers = {
        "query": "query",
        "key": "key",
        "value": "value",
        "attention_output": "attention_output",
        "intermediate_dense": "feed_forward",
        "output_dense": "feed_forward",
        "attention_layer_norm": "norms",
        "output_layer_norm": "norms",
        "embeddings_layer_norm": "norms",
        "pooled_dense": "pooler",
        "token_embedding": "token_embedding",
        "position_embedding": "position_embedding",
        "segment_embedding": "segment_embedding",
        "next_sentence_dense": "next_sentence_head",
    }
    for weight in model.weights:
        *path, layer, _ = weight.path.split("/")
        of_head = "masked_lm_head" in [*path, layer]
        part = "masked_lm_head" if of_head else layers[layer]
        counted[part] += math.prod(weight.shape)
    return counted


@pytest.mark.parametrize(
    "name",
    ["bert_base", "fixed_d768_p128_h20", "lm1b_d256_p32_h70"],
)
def test_a_preset_is_the_keras_model_s(name, without_memory):
    backbone = FixedHeadBackbone(**presets.shape(name))
    model = FixedHeadMaskedLM(backbone, next_sentence=backbone.pooler)
    counted = ParameterCount.of(EncoderShape(**presets.shape(name)))
    assert counted.encoder == backbone.count_params()
    assert counted.total == model.count_params()
    assert vars(counted) == parts_of(model)


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("head_size", [7, (5, 2), [(5, 2, 3), 13], None])
def test_a_model_with_values(make_backbone, head_size, pooler):
    # Sizes that are different primes; heads of different sizes, too.
    backbone = make_backbone(head_size=head_size, pooler=pooler)
    model = FixedHeadMaskedLM(backbone, next_sentence=pooler)
    counted = ParameterCount.of(backbone)
    assert counted == ParameterCount.of(EncoderShape.of(backbone))
    assert counted.encoder == backbone.count_params()
    assert counted.total == model.count_params()
    assert vars(counted) == parts_of(model)


def test_no_shape():
    with pytest.raises(ValueError, match="`model` must be.*Received.*'bert'"):
        ParameterCount.of("bert")
