"""BERTs of google-research/bert and tf-models-official, as they were.

Shape letters: B batch, T sequence length, D embedding size.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import yaml
from official.legacy.bert import configs
from official.modeling import tf_utils
from official.nlp.configs import encoders
from official.nlp.modeling import layers, models, networks
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tests.training.convert.original_bert import (
    CONFIG,
    VOCABULARY,
    original_tensors,
    write_original,
)
from training.convert.model_garden import read_model_garden
from training.convert.model_garden_checkpoint import (
    read_model_garden_checkpoint,
)
from training.convert.original import OBJECT_GRAPH, read_original
from training.convert.reference import encode

# A pretrainer hands its encoder the positions of masked tokens, too, and a
# functional encoder, which has no input for them, says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Input dict contained keys .'masked_lm_positions'.:UserWarning"
)

SIZES = {
    "vocab_size": 29,
    "hidden_size": 15,
    "num_layers": 2,
    "num_attention_heads": 3,
    "max_sequence_length": 13,
    "type_vocab_size": 2,
    "inner_dim": 19,
}
GELUS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_approximate": tf_utils.get_activation("gelu"),
}
QUERY = "bert/encoder/layer_1/attention/self/query/kernel"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A checkpoint as pre-training leaves it, with the optimizer's part."""
    tensors = original_tensors()
    slots = {
        f"{name}/{slot}": tensor + 1
        for name, tensor in tensors.items()
        for slot in ("adam_m", "adam_v")
    }
    return write_original(
        tmp_path_factory.mktemp("original"),
        {**tensors, **slots, "global_step": np.int64(31)},
    )


def convert(folder, original, attribute, kind):
    """What tf-models-official makes of an original checkpoint."""
    tf2_bert_encoder_checkpoint_converter.convert_checkpoint(
        configs.BertConfig.from_dict(CONFIG),
        str(folder / "bert_model.ckpt"),
        str(original / "bert_model.ckpt"),
        checkpoint_model_name=attribute,
        converted_model=kind,
    )
    shutil.copy(original / "bert_config.json", folder)
    shutil.copy(original / "vocab.txt", folder)
    return folder


@pytest.fixture(scope="module")
def converted(original, tmp_path_factory):
    return convert(
        tmp_path_factory.mktemp("encoder"), original, "model", "encoder"
    )


@pytest.fixture(scope="module")
def restored(converted):
    """tf-models-official's encoder, restored by its own means."""
    encoder = networks.BertEncoder(
        **SIZES, inner_activation=tf_utils.get_activation("gelu")
    )
    tf.train.Checkpoint(model=encoder).read(
        str(converted / "bert_model.ckpt-1")
    ).assert_existing_objects_matched().expect_partial()
    return encoder


@pytest.fixture(scope="module")
def live():
    """An encoder to write, and not to change."""
    return make_encoder("v1")


def make_inputs(batch=3, length=11):
    random = np.random.default_rng(3)
    lengths = np.array([length, 7, 2])[:batch, None]
    return {
        "token_ids": random.integers(0, 29, (batch, length)).astype("int32"),
        "segment_ids": random.integers(0, 2, (batch, length)).astype("int32"),
        "padding_mask": (np.arange(length) < lengths).astype("int32"),
    }


def run_official(encoder, inputs):
    """The encoder's own outputs, called as its own code calls it."""
    outputs = encoder(
        {
            "input_word_ids": tf.constant(inputs["token_ids"]),
            "input_mask": tf.constant(inputs["padding_mask"]),
            "input_type_ids": tf.constant(inputs["segment_ids"]),
        }
    )
    if not isinstance(outputs, dict):
        outputs = dict(zip(("sequence_output", "pooled_output"), outputs))
    return {
        name: outputs[name].numpy()
        for name in ("sequence_output", "pooled_output")
    }


def assert_same(found, expected, atol=1e-5):
    real = make_inputs()["padding_mask"].astype(bool)
    for name in ("sequence_output", "pooled_output"):
        a, b = np.asarray(found[name]), np.asarray(expected[name])
        if name == "sequence_output":
            a, b = a[real], b[real]
        assert a.std() > 0.1
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=name)


def randomize(model, seed=11):
    """Random weights, also where a fresh layer's do nothing."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        mean = 1.0 if "gamma" in weight.name else 0.0
        weight.assign(random.normal(mean, 0.4, weight.shape))
    return model


def make_encoder(version, activation="gelu_approximate", **arguments):
    encoder_class = {
        "v1": networks.BertEncoder,
        "v2": networks.BertEncoderV2,
    }[version]
    encoder = encoder_class(
        **{**SIZES, "inner_activation": GELUS[activation], **arguments}
    )
    encoder(encoder.inputs)
    return randomize(encoder)


def make_pretrainer(version="v2", head=(), mlm=None, **encoder):
    """A pretrainer with a head for next sentences, but for `head=None`."""
    heads = []
    if head is not None:
        arguments = {"inner_dim": 15, "num_classes": 2, "name": "next_sentence"}
        heads = [layers.ClassificationHead(**{**arguments, **dict(head)})]
    pretrainer = models.BertPretrainerV2(
        make_encoder(version, **encoder),
        mlm_activation=mlm or GELUS["gelu_approximate"],
        classification_heads=heads,
    )
    pretrainer(pretrainer.inputs)
    return randomize(pretrainer)


def write_params(folder, kind, heads=(), **bert):
    encoder = encoders.BertEncoderConfig(
        vocab_size=29,
        hidden_size=15,
        num_layers=2,
        num_attention_heads=3,
        intermediate_size=19,
        max_position_embeddings=13,
        type_vocab_size=2,
    ).as_dict()
    params = {
        "runtime": {"distribution_strategy": "mirrored"},
        "task": {
            "model": {
                "cls_heads": list(heads),
                "mlm_activation": "gelu",
                "encoder": {"type": kind, kind: {**encoder, **bert}},
            }
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


# === google-research/bert ===


def test_an_original_keeps_each_tensor_and_its_sizes(original):
    source = read_original(original, lowercase=True)
    expected = original_tensors()
    weights = expected.pop("cls/seq_relationship/output_weights")
    expected["cls/seq_relationship/kernel"] = weights.T
    expected["cls/seq_relationship/bias"] = expected.pop(
        "cls/seq_relationship/output_bias"
    )
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(source.tensors[name], tensor)
    assert source.spell("cls/seq_relationship/kernel") == (
        "cls/seq_relationship/output_weights"
    )
    assert source.config == {
        "vocabulary_size": 29,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 15,
        "intermediate_dim": 19,
        "max_sequence_length": 13,
        "num_segments": 2,
        "head_size": 5,
        "dropout": 0.1,
        "activation": "gelu_approximate",
        "layer_norm_epsilon": 1e-12,
    }
    assert source.vocabulary == VOCABULARY
    assert source.lowercase is True


def test_an_original_computes_what_official_does(original, restored):
    source = read_original(original)
    inputs = make_inputs()
    official = run_official(restored, inputs)
    assert_same(encode(source, inputs), official)
    assert_same(source.build("backbone")(inputs), official)


def test_an_original_computes_the_reference(original):
    source = read_original(original)
    inputs = make_inputs()
    assert_same(source.build("backbone")(inputs), encode(source, inputs))


@pytest.mark.parametrize("activation", ["gelu", "gelu_approximate", "relu"])
def test_activations_are_the_reference_s(original, activation):
    source = read_original(original)
    source = dataclasses.replace(
        source, config={**source.config, "activation": activation}
    )
    inputs = make_inputs()
    assert_same(source.build("backbone")(inputs), encode(source, inputs))


def test_an_original_predicts_tokens_and_sentences(original):
    source = read_original(original, lowercase=False)
    masked_lm = source.build("masked_lm")
    inputs = make_inputs()
    positions = np.array([[1, 3], [5, 0], [1, 1]], "int32")
    found = masked_lm({**inputs, "mask_positions": positions})
    # BERT's heads as run_pretraining.py has them.
    tensors = {x: y.astype("float64") for x, y in original_tensors().items()}
    encoded = encode(source, inputs)
    x = np.take_along_axis(
        encoded["sequence_output"], positions[..., None], axis=1
    )
    transform = "cls/predictions/transform"
    x = x @ tensors[f"{transform}/dense/kernel"]
    x = x + tensors[f"{transform}/dense/bias"]
    x = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12)
    x = x * tensors[f"{transform}/LayerNorm/gamma"]
    x = x + tensors[f"{transform}/LayerNorm/beta"]
    logits = x @ tensors["bert/embeddings/word_embeddings"].T
    np.testing.assert_allclose(
        found["masked_lm"],
        logits + tensors["cls/predictions/output_bias"],
        atol=3e-5,
    )
    logits = (
        encoded["pooled_output"]
        @ tensors["cls/seq_relationship/output_weights"].T
    )
    np.testing.assert_allclose(
        found["next_sentence"],
        logits + tensors["cls/seq_relationship/output_bias"],
        atol=1e-5,
    )


def test_an_original_is_found_by_its_prefix_or_alone(original, tmp_path):
    tensors = original_tensors()
    folder = write_original(tmp_path / "a", tensors, name="model.ckpt-31")
    for path in (folder, folder / "model.ckpt-31"):
        source = read_original(path)
        np.testing.assert_array_equal(source.tensors[QUERY], tensors[QUERY])
        assert source.origin == str(folder / "model.ckpt-31")
    assert read_original(original / "bert_model.ckpt").vocabulary == VOCABULARY


def test_an_original_without_heads_is_an_encoder(tmp_path):
    tensors = {
        name: tensor
        for name, tensor in original_tensors().items()
        if not name.startswith("cls")
    }
    source = read_original(write_original(tmp_path / "a", tensors))
    assert_same(
        source.build("backbone")(make_inputs()), encode(source, make_inputs())
    )
    with pytest.raises(ValueError, match="cls/predictions/output_bias"):
        dataclasses.replace(source, lowercase=True).build("masked_lm")


def test_other_tensors_of_an_original_are_an_error(tmp_path):
    tensors = original_tensors()
    tensors["output_weights"] = np.ones((2, 15), "float32")
    source = read_original(write_original(tmp_path / "a", tensors))
    with pytest.raises(ValueError, match="no place for: output_weights"):
        source.build("backbone")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("bert/encoder/layer_1/output/LayerNorm/gamma", "backbone"),
        ("cls/seq_relationship/output_bias", "masked_lm"),
    ],
)
def test_missing_tensors_of_an_original_have_its_names(tmp_path, name, task):
    tensors = original_tensors()
    del tensors[name]
    source = read_original(
        write_original(tmp_path / "a", tensors), lowercase=True
    )
    with pytest.raises(ValueError, match=f"lacks {name}$"):
        source.build(task)


def test_an_original_asks_for_lowercase(original):
    with pytest.raises(ValueError, match="`lowercase`: pass it"):
        read_original(original).build("masked_lm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_size": 7}, "embedding_size=7, hidden_size=15"),
        ({"hidden_act": "tanh"}, "gelu, relu. Received: 'tanh'"),
        ({"hidden_act": ["relu"]}, r"gelu, relu. Received: \['relu'\]"),
        ({"hidden_dropout_prob": "0"}, "`hidden_dropout_prob`.*'0'"),
        ({"hidden_size": "15"}, "`hidden_size`.*Received: '15'"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers`.*Received: 0"),
        ({"num_attention_heads": 7}, "multiple.*num_attention_heads=7"),
        ({"type_vocab_size": None}, "`type_vocab_size`.*Received: None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_configurations_are_errors(tmp_path, change, message):
    folder = write_original(
        tmp_path / "a", {"x": np.ones(1, "float32")}, {**CONFIG, **change}
    )
    with pytest.raises(ValueError, match=message):
        read_original(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object.*Received: list"),
        ("{}", "lacks vocab_size, num_hidden_layers"),
    ],
    ids=["damaged", "list", "empty"],
)
def test_damaged_configurations_are_errors(tmp_path, text, message):
    folder = write_original(tmp_path / "a", {"x": np.ones(1, "float32")})
    (folder / "bert_config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_original(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert_config.json", "bert_config.json"),
        ("vocab.txt", "vocab.txt"),
        ("bert_model.ckpt.index", r"no \*.index"),
        ("bert_model.ckpt.data-00000-of-00001", "no bert_model.ckpt.data-"),
    ],
)
def test_missing_files_are_errors(original, tmp_path, name, message):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        read_original(folder)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("how", ["cut", "changed"])
@pytest.mark.parametrize(
    ("reader", "files"),
    [
        (read_original, "original"),
        (read_model_garden_checkpoint, "converted"),
    ],
    ids=["original", "model_garden"],
)
def test_damaged_files_are_errors(
    request, tmp_path, reader, files, how, ending
):
    folder = shutil.copytree(request.getfixturevalue(files), tmp_path / "a")
    [path] = folder.glob(f"*.{ending}")
    content = path.read_bytes()
    # Not in what the optimizer left, which nobody reads.
    start = len(content) // 10
    if how == "cut":
        path.write_bytes(content[:start])
    else:
        flipped = bytes(255 - byte for byte in content[start : start + 97])
        path.write_bytes(content[:start] + flipped + content[start + 97 :])
    with pytest.raises(ValueError, match=r"damaged|cannot be restored"):
        reader(folder)


def test_several_checkpoints_are_an_error(tmp_path):
    tensors = {"x": np.ones(1, "float32")}
    for name in ("model.ckpt-2", "model.ckpt-31"):
        write_original(tmp_path / "a", tensors, name=name)
    with pytest.raises(ValueError, match="model.ckpt-2, model.ckpt-31"):
        read_original(tmp_path / "a")


def test_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        read_original(tmp_path / "bert_model.ckpt")


def test_a_vocabulary_of_bytes_is_an_error(original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match="vocab.txt is not UTF-8"):
        read_original(folder)
    assert read_original(folder, vocabulary=VOCABULARY).lowercase is None


def test_the_other_tensorflow_is_an_error(original, converted):
    with pytest.raises(ValueError, match="TensorFlow 2.*read_model_garden"):
        read_original(converted)
    with pytest.raises(ValueError, match="TensorFlow 1.*read_original"):
        read_model_garden_checkpoint(original)


# === tf-models-official, live ===


@pytest.mark.parametrize("activation", sorted(GELUS))
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_live_encoder(version, activation):
    encoder = make_encoder(version, activation)
    source = read_model_garden(encoder, origin="this")
    inputs = make_inputs()
    official = run_official(encoder, inputs)
    assert source.config["activation"] == activation
    assert source.config["layer_norm_epsilon"] == 1e-12
    assert_same(source.encode(inputs), official, atol=1e-6)
    assert_same(encode(source, inputs), official)
    assert_same(source.build("backbone")(inputs), official)


@pytest.mark.parametrize("all_outputs", [False, True], ids=["last", "all"])
@pytest.mark.parametrize("dict_outputs", [False, True], ids=["list", "dict"])
def test_each_kind_of_outputs(all_outputs, dict_outputs):
    encoder = make_encoder(
        "v1",
        return_all_encoder_outputs=all_outputs,
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
    official = run_official(encoder, inputs)
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
            "input_word_ids": tf.constant(inputs["token_ids"]),
            "input_mask": tf.constant(inputs["padding_mask"]),
            "input_type_ids": tf.constant(inputs["segment_ids"]),
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
    pretrainer = make_pretrainer(head=None)
    source = read_model_garden(
        pretrainer, vocabulary=VOCABULARY, lowercase=True
    )
    assert not source.build("masked_lm").next_sentence
    official = run_official(pretrainer.encoder_network, make_inputs())
    assert_same(source.build("backbone")(make_inputs()), official)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm_first": True}, "this has norm_first=True"),
        ({"embedding_width": 7}, "this has embedding_width=7"),
        ({"output_range": 1}, "this has output_range=1"),
        (
            {
                "embedding_layer": layers.OnDeviceEmbedding(
                    29, 15, scale_factor=2.0
                )
            },
            "embedding_layer=.*must be None",
        ),
        ({"inner_activation": tf.nn.silu}, "one activation.*: another"),
        ({"inner_activation": tf.tanh}, "one activation.*: tanh"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_encoders_without_equivalent_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        read_model_garden(make_encoder("v2", **arguments), origin="this")


def test_a_pooler_without_tanh_is_refused():
    encoder = make_encoder("v2")
    encoder.pooler_layer.activation = tf.nn.relu
    with pytest.raises(ValueError, match="pooler of this.*tanh.*relu"):
        read_model_garden(encoder, origin="this")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": {"inner_dim": 7}}, "next_sentence.*inner_dim=7"),
        ({"head": {"inner_dim": 0}}, "next_sentence.*inner_dim=0"),
        ({"head": {"num_classes": 3}}, "next_sentence.*num_classes=3"),
        ({"head": {"cls_token_idx": 1}}, "next_sentence.*cls_token_idx=1"),
        ({"head": {"activation": "relu"}}, "next_sentence.*activation="),
        ({"head": {"name": "topics"}}, "Received: topics"),
        ({"mlm": GELUS["gelu"]}, "`mlm_activation`.*: gelu, gelu_approx"),
    ],
    ids=["width", "no_width", "classes", "token", "activation", "name", "mlm"],
)
def test_heads_without_equivalent_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        read_model_garden(make_pretrainer(**arguments))


def test_a_classification_head_of_another_class_is_refused():
    encoder = make_encoder("v2")
    head = layers.MultiClsHeads(15, [("a", 2)], name="next_sentence")
    pretrainer = models.BertPretrainerV2(encoder, classification_heads=[head])
    with pytest.raises(ValueError, match="ClassificationHead.*MultiClsHeads"):
        read_model_garden(pretrainer)


def test_a_masked_lm_of_another_class_is_refused():
    encoder = make_encoder("v2")

    class Mine(layers.MaskedLM):
        pass

    pretrainer = models.BertPretrainerV2(
        encoder, customized_masked_lm=Mine(encoder.get_embedding_table())
    )
    with pytest.raises(ValueError, match="Received: Mine"):
        read_model_garden(pretrainer)


def test_other_classes_are_refused():
    albert = networks.AlbertEncoder(29, embedding_width=7, hidden_size=15)
    with pytest.raises(ValueError, match="Received: .*AlbertEncoder"):
        read_model_garden(albert)


def test_an_encoder_without_weights_is_refused():
    with pytest.raises(ValueError, match="this has no weights yet"):
        read_model_garden(networks.BertEncoderV2(**SIZES), origin="this")
    pretrainer = models.BertPretrainerV2(make_encoder("v2"))
    with pytest.raises(ValueError, match="has no weights yet"):
        read_model_garden(pretrainer)


# === tf-models-official, checkpoints ===


@pytest.mark.parametrize(
    "attribute", ["model", pytest.param("encoder", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "kind", [pytest.param("encoder", marks=pytest.mark.slow), "pretrainer"]
)
def test_what_official_converts(original, restored, tmp_path, kind, attribute):
    folder = convert(tmp_path / "a", original, attribute, kind)
    source = read_model_garden_checkpoint(folder, lowercase=True)
    inputs = make_inputs()
    official = run_official(restored, inputs)
    assert_same(source.encode(inputs), official, atol=1e-6)
    assert_same(source.build("backbone")(inputs), official)
    assert source.vocabulary == VOCABULARY
    first = read_original(original)
    heads = () if kind == "encoder" else ("cls/predictions",)
    expected = {
        name: tensor
        for name, tensor in first.tensors.items()
        if name.startswith(("bert", *heads))
    }
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(source.tensors[name], tensor)
    assert source.config == first.config


def test_a_checkpoint_is_found_by_its_prefix(converted):
    source = read_model_garden_checkpoint(
        converted / "bert_model.ckpt-1", vocabulary=VOCABULARY[:7]
    )
    assert source.origin == str(converted / "bert_model.ckpt-1")
    assert source.vocabulary == VOCABULARY[:7]


def test_of_two_configurations_params_count(converted, tmp_path):
    folder = shutil.copytree(converted, tmp_path / "a")
    write_params(folder, "bert", hidden_activation="relu")
    source = read_model_garden_checkpoint(folder)
    assert source.config["activation"] == "relu"


@pytest.mark.parametrize(
    "kind", ["bert", pytest.param("bert_v2", marks=pytest.mark.slow)]
)
def test_what_a_trainer_writes(tmp_path, kind):
    """`official.core.base_trainer.Trainer` makes this checkpoint."""
    pretrainer = make_pretrainer(
        {"bert": "v1", "bert_v2": "v2"}[kind], dict_outputs=True
    )
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(pretrainer.trainable_variables)
    folder = write_params(
        tmp_path / "a",
        kind,
        [{"inner_dim": 15, "num_classes": 2, "name": "next_sentence"}],
    )
    tf.train.Checkpoint(
        global_step=tf.Variable(31, dtype=tf.int64),
        model=pretrainer,
        optimizer=optimizer,
        **pretrainer.checkpoint_items,
    ).save(str(folder / "ckpt"))
    source = read_model_garden_checkpoint(folder)
    expected = read_model_garden(pretrainer)
    assert source.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(source.tensors[name], tensor)
    assert source.config == expected.config
    assert source.vocabulary is None
    assert_same(source.encode(make_inputs()), expected.encode(make_inputs()))


@pytest.mark.parametrize(
    "version", [pytest.param("v1", marks=pytest.mark.slow), "v2"]
)
@pytest.mark.parametrize(
    "legacy",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["adam", "legacy_adam"],
)
def test_what_else_writes_an_encoder(tmp_path, version, legacy):
    encoder = make_encoder(version)
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    if legacy:
        optimizer = tf_keras.optimizers.legacy.Adam()
        optimizer.apply_gradients(
            (tf.zeros_like(weight), weight)
            for weight in encoder.trainable_variables
        )
        tf.train.Checkpoint(model=encoder, optimizer=optimizer).save(
            str(folder / "ckpt")
        )
    else:
        tf.train.Checkpoint(encoder).write(str(folder / "ckpt"))
    source = read_model_garden_checkpoint(folder)
    expected = read_model_garden(encoder)
    for name, tensor in expected.tensors.items():
        # Adam leaves alone what has no gradient.
        np.testing.assert_array_equal(source.tensors[name], tensor)


@pytest.mark.parametrize("moved", ["layer-", "layer_with_weights-"])
def test_layers_may_be_counted_otherwise(live, tmp_path, moved):
    """As versions do: a model's layers without weights come and go."""
    written = tf.train.Checkpoint(model=live).write(str(tmp_path / "b" / "b"))
    reader = tf.train.load_checkpoint(written)
    names = reader.get_variable_to_shape_map()
    tensors = {name: reader.get_tensor(name) for name in names}
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tensors[OBJECT_GRAPH])
    [model] = [x.node_id for x in graph.nodes[0].children]
    children = graph.nodes[model].children
    kept = [x for x in children if x.local_name.startswith("layer")]
    for child in kept:
        if child.local_name.startswith(moved):
            number = int(child.local_name.removeprefix(moved))
            child.local_name = f"{moved}{number + 1}"
    kept = [(child.local_name, child.node_id) for child in kept]
    # Nor did all versions name layers otherwise than by numbers.
    del children[:]
    for name, node in kept:
        children.add(local_name=name, node_id=node)
    tensors[OBJECT_GRAPH] = graph.SerializeToString()
    folder = write_original(tmp_path / "a", tensors)
    if moved == "layer_with_weights-":
        with pytest.raises(ValueError, match="holds neither a BertEncoder"):
            read_model_garden_checkpoint(folder)
        return
    source = read_model_garden_checkpoint(folder)
    for name, tensor in read_model_garden(live).tensors.items():
        np.testing.assert_array_equal(source.tensors[name], tensor)


def test_tensors_without_use_are_an_error(tmp_path):
    folder = write_params(tmp_path / "a", "bert_v2")
    tf.train.Checkpoint(model=make_encoder("v2"), more=tf.Variable([1.0])).save(
        str(folder / "ckpt")
    )
    with pytest.raises(ValueError, match="no place for: more/.ATTRIBUTES"):
        read_model_garden_checkpoint(folder)


def test_heads_the_configuration_does_not_name_are_an_error(tmp_path):
    folder = write_params(tmp_path / "a", "bert_v2")
    tf.train.Checkpoint(model=make_pretrainer()).save(str(folder / "ckpt"))
    with pytest.raises(
        ValueError, match="no place for: model/classification_heads/0/dense"
    ):
        read_model_garden_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 3}, "lacks model/.*_query_dense/kernel/.ATTRIBUTES"),
        ({"num_layers": 1}, "no place for: .*layer"),
        ({"vocab_size": 31}, r"embeddings/.* \(29, 15\) instead of \(31, 15\)"),
        ({"norm_first": True}, "norm_first=True"),
        ({"embedding_size": 7}, "embedding_width=7"),
        ({"hidden_activation": "tanh"}, "one activation"),
        ({"hidden_activation": "bent"}, "params.yaml does not desc.*bent"),
        ({"num_attention_heads": 0}, "params.yaml does not describe.*zero$"),
        ({"fields": 1}, "params.yaml is not as expected: .*fields"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_configuration_is_an_error(live, tmp_path, change, message):
    folder = write_params(tmp_path / "a", "bert", **change)
    tf.train.Checkpoint(model=live).save(str(folder / "ckpt"))
    with pytest.raises(ValueError, match=message):
        read_model_garden_checkpoint(folder)


@pytest.mark.parametrize(("version", "place"), [("v1", "model"), ("v2", None)])
def test_missing_tensors_are_named_as_tensorflow_would(
    tmp_path, version, place
):
    def write(name, layers):
        kind = {"v1": "bert", "v2": "bert_v2"}[version]
        folder = write_params(tmp_path / name, kind, num_layers=3)
        model = make_encoder(version, num_layers=layers)
        if place is None:
            checkpoint = tf.train.Checkpoint(model)
        else:
            checkpoint = tf.train.Checkpoint(**{place: model})
        path = checkpoint.write(str(folder / "ckpt"))
        return folder, {name for name, _ in tf.train.list_variables(path)}

    folder, there = write("a", 2)
    _, expected = write("b", 3)
    with pytest.raises(ValueError, match=f"{folder}/ckpt lacks ") as error:
        read_model_garden_checkpoint(folder)
    named = str(error.value).partition(" lacks ")[2].split(", ")
    assert sorted(named) == sorted(expected - there)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("7", "no task.model.encoder"),
        ("task: {model: {}}", "no task.model.encoder"),
        ("task: {model: {encoder: {type: albert}}}", "Received: 'albert'"),
    ],
    ids=["damaged", "number", "empty", "albert"],
)
def test_wrong_params_are_errors(converted, tmp_path, text, message):
    folder = shutil.copytree(converted, tmp_path / "a")
    (folder / "params.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_model_garden_checkpoint(folder)


def test_a_checkpoint_alone_is_an_error(converted, tmp_path):
    folder = shutil.copytree(converted, tmp_path / "a")
    (folder / "bert_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="neither params.yaml nor"):
        read_model_garden_checkpoint(folder)


def test_a_checkpoint_of_something_else_is_an_error(tmp_path):
    folder = write_params(tmp_path / "a", "bert")
    tf.train.Checkpoint(thing=tf.Variable([1.0])).save(str(folder / "ckpt"))
    with pytest.raises(ValueError, match="neither.*Received: .*thing"):
        read_model_garden_checkpoint(folder)
