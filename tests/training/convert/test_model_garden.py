"""Live BERTs of tf-models-official."""

import numpy as np
import pytest
import tensorflow as tf
from official.nlp.modeling import layers, models, networks

from tests.training.convert import official_bert
from tests.training.convert.official_bert import (
    GELUS,
    SIZES,
    make_encoder,
    make_head,
    make_pretrainer,
    official_inputs,
    shared_encoder,
)
from tests.training.convert.original_bert import (
    VOCABULARY,
    assert_same,
    make_inputs,
)
from training.convert.model_garden import read_model_garden
from training.convert.reference import encode

# A pretrainer hands its encoder the positions of masked tokens, too, and a
# functional encoder, which has no input for them, says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Input dict contained keys .'masked_lm_positions'.:UserWarning"
)


@pytest.mark.parametrize(
    ("version", "activation"), [("v1", "gelu"), ("v2", "gelu_approximate")]
)
def test_a_live_encoder(version, activation):
    encoder = make_encoder(version, activation)
    source = read_model_garden(encoder, origin="this")
    inputs = make_inputs()
    official = official_bert.run(encoder, inputs)
    assert source.config["activation"] == activation
    assert source.config["layer_norm_epsilon"] == 1e-12
    assert_same(source.encode(inputs), official, atol=1e-6)
    assert_same(encode(source, inputs), official)
    assert_same(source.build("backbone")(inputs), official)


@pytest.mark.parametrize("dict_outputs", [False, True], ids=["list", "dict"])
def test_outputs_of_each_layer(dict_outputs):
    encoder = make_encoder(
        "v1",
        return_all_encoder_outputs=True,
        dict_outputs=dict_outputs,
        return_attention_scores=True,
    )
    source = read_model_garden(encoder)
    inputs = make_inputs()
    assert_same(source.encode(inputs), encode(source, inputs))


def test_the_epsilon_is_the_layers():
    encoder = make_encoder("v2")
    norms = [encoder._embedding_norm_layer]
    for block in encoder.transformer_layers:
        norms += [block._attention_layer_norm, block._output_layer_norm]
    for norm in norms:
        norm.epsilon = 0.01
    source = read_model_garden(encoder)
    assert source.config["layer_norm_epsilon"] == 0.01
    inputs = make_inputs()
    assert_same(encode(source, inputs), source.encode(inputs))
    norms[1].epsilon = 0.02
    with pytest.raises(ValueError, match="one epsilon.*0.01, 0.02"):
        read_model_garden(encoder)


def test_heads_that_do_not_divide_the_embedding():
    """tf-models-official floors the head size; here it can be any."""
    encoder = make_encoder("v2", num_attention_heads=2)
    source = read_model_garden(encoder)
    assert source.config["head_size"] == 7
    inputs = make_inputs()
    official = official_bert.run(encoder, inputs)
    assert_same(encode(source, inputs), official)
    assert_same(source.build("backbone")(inputs), official)


@pytest.mark.parametrize(
    "version", ["v1", pytest.param("v2", marks=pytest.mark.slow)]
)
def test_a_live_pretrainer(version):
    pretrainer = make_pretrainer(version, dict_outputs=True)
    source = read_model_garden(
        pretrainer, vocabulary=VOCABULARY, lowercase=True
    )
    inputs = make_inputs()
    positions = np.array([[1, 3], [5, 0], [1, 1]], "int32")
    official = pretrainer(
        {
            **official_inputs(inputs),
            "masked_lm_positions": tf.constant(positions),
        }
    )
    found = source.build("masked_lm")({**inputs, "mask_positions": positions})
    np.testing.assert_allclose(
        found["masked_lm"], official["mlm_logits"], atol=3e-5
    )
    np.testing.assert_allclose(
        found["next_sentence"], official["next_sentence"], atol=1e-5
    )
    [head] = pretrainer.classification_heads
    expected = {
        "sequence_output": official["sequence_output"],
        "pooled_output": head(official["sequence_output"], only_project=True),
    }
    assert_same(source.encode(inputs), expected)
    assert_same(source.build("backbone")(inputs), expected)


def test_a_pretrainer_without_next_sentences():
    pretrainer = make_pretrainer(head=False)
    source = read_model_garden(
        pretrainer, vocabulary=VOCABULARY, lowercase=True
    )
    assert not source.build("masked_lm").next_sentence
    official = official_bert.run(pretrainer.encoder_network, make_inputs())
    assert_same(source.encode(make_inputs()), official)


def without_weights(**arguments):
    return networks.BertEncoderV2(**{**SIZES, **arguments})


def with_weights(**arguments):
    return make_encoder("v2", **arguments)


def with_heads(*heads, **arguments):
    return models.BertPretrainerV2(
        shared_encoder("v2"), classification_heads=[*heads], **arguments
    )


def with_head(**arguments):
    return with_heads(make_head(**arguments))


def with_many_classes():
    return with_heads(
        layers.MultiClsHeads(15, [("a", 2)], name="next_sentence")
    )


def with_own_masked_lm():
    class Own(layers.MaskedLM):
        pass

    table = shared_encoder("v2").get_embedding_table()
    return with_heads(customized_masked_lm=Own(table))


def with_another_activation():
    pretrainer = with_heads(mlm_activation=GELUS["gelu"])
    pretrainer(pretrainer.inputs)
    return pretrainer


def with_scaled_embeddings():
    table = layers.OnDeviceEmbedding(29, 15, scale_factor=2.0)
    return without_weights(embedding_layer=table)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (without_weights, {}, "this has no weights yet"),
        (with_heads, {}, "this has no weights yet"),
        (without_weights, {"norm_first": True}, "this has norm_first=True"),
        (without_weights, {"embedding_width": 7}, "this has embedding_width=7"),
        (without_weights, {"output_range": 1}, "this has output_range=1"),
        (with_scaled_embeddings, {}, "embedding_layer=.*must be None"),
        (with_weights, {"inner_activation": tf.nn.silu}, "one act.*: another"),
        (with_weights, {"inner_activation": tf.tanh}, "one activat.*: tanh"),
        (with_another_activation, {}, "`mlm_activation`.*: gelu, gelu_appro"),
        (with_own_masked_lm, {}, "Received: Own"),
        (with_head, {"inner_dim": 7}, "next_sentence.*inner_dim=7"),
        (with_head, {"inner_dim": 0}, "next_sentence.*inner_dim=0"),
        (with_head, {"num_classes": 3}, "next_sentence.*num_classes=3"),
        (with_head, {"cls_token_idx": 1}, "next_sentence.*cls_token_idx=1"),
        (with_head, {"activation": "relu"}, "next_sentence.*activation="),
        (with_head, {"name": "topics"}, "Received: topics"),
        (with_many_classes, {}, "ClassificationHead.*MultiClsHeads"),
    ],
)
def test_what_has_no_equivalent_is_refused(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_model_garden(make(**arguments), origin="this")


def test_other_classes_are_refused():
    albert = networks.AlbertEncoder(29, embedding_width=7, hidden_size=15)
    with pytest.raises(ValueError, match="Received: .*AlbertEncoder"):
        read_model_garden(albert)


def test_a_pooler_without_tanh_is_refused(monkeypatch):
    encoder = shared_encoder("v2")
    monkeypatch.setattr(encoder.pooler_layer, "activation", tf.nn.relu)
    with pytest.raises(ValueError, match="pooler of this.*tanh.*relu"):
        read_model_garden(encoder, origin="this")
