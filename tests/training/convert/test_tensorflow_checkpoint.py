"""BERTs of google-research/bert and tf-models-official, as they were."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tests.training.convert import tensorflow_berts
from tests.training.convert.tensorflow_berts import (
    CONFIG,
    VOCABULARY,
    assert_same,
    make_inputs,
    original_tensors,
    write_original,
)
from training.convert.reference_encoders import encode_by_numpy
from training.convert.tensorflow_checkpoint import read_checkpoint

# A pretrainer hands its encoder the positions of masked tokens, too, and a
# functional encoder, which has no input for them, says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Input dict contained keys .'masked_lm_positions'.:UserWarning"
)

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def test_an_original_keeps_each_tensor_and_its_sizes(original):
    source = read_checkpoint(original, lowercase=True)
    expected = original_tensors()
    weights = expected.pop("cls/seq_relationship/output_weights")
    expected["cls/seq_relationship/kernel"] = weights.T
    expected["cls/seq_relationship/bias"] = expected.pop(
        "cls/seq_relationship/output_bias"
    )
    assert_same_tensors(source.tensors, expected)
    # The shapes of the tensors show the other sizes.
    assert {
        "num_heads": 3,
        "head_size": 5,
        "dropout": 0.1,
        "activation": "gelu_approximate",
        "layer_norm_epsilon": 1e-12,
    }.items() <= source.config.items()
    assert source.vocabulary == VOCABULARY
    assert source.lowercase is True


def test_an_original_computes_what_official_does(original, official_checkpoint):
    inputs = make_inputs()
    official = tensorflow_berts.run_encoder(official_checkpoint, inputs)
    source = read_checkpoint(original)
    assert_same(encode_by_numpy(source, inputs), official)
    assert_same(source.build("backbone")(inputs), official)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_other_activations_are_the_reference_s(original, activation):
    source = read_checkpoint(original)
    source = dataclasses.replace(
        source, config={**source.config, "activation": activation}
    )
    inputs = make_inputs()
    assert_same(
        source.build("backbone")(inputs), encode_by_numpy(source, inputs)
    )


@pytest.mark.parametrize("kind", ["encoder", "pretrainer"])
def test_what_official_converts(original, official_checkpoint, tmp_path, kind):
    folder = official_checkpoint
    if kind == "pretrainer":
        folder = tensorflow_berts.convert(tmp_path, original, kind)
    source, first = read_checkpoint(folder), read_checkpoint(original)
    kept = ("bert",) if kind == "encoder" else ("bert", "cls/predictions")
    assert_same_tensors(
        source.tensors,
        {k: x for k, x in first.tensors.items() if k.startswith(kept)},
    )
    assert source.config == first.config
    assert source.vocabulary == VOCABULARY


@pytest.mark.parametrize(
    "kind", [pytest.param("bert", marks=pytest.mark.slow), "bert_v2"]
)
def test_what_a_trainer_writes(tmp_path, kind):
    """`official.core.base_trainer.Trainer` makes this checkpoint."""
    pretrainer = tensorflow_berts.make_pretrainer(kind)
    optimizer = tf_keras.optimizers.legacy.Adam()
    optimizer.apply_gradients(
        (tf.zeros_like(weight), weight)
        for weight in pretrainer.trainable_variables
    )
    folder = tensorflow_berts.write_params(tmp_path / "a", kind, [{}])
    tf.train.Checkpoint(
        global_step=tf.Variable(31, dtype=tf.int64),
        model=pretrainer,
        optimizer=optimizer,
        **pretrainer.checkpoint_items,
    ).save(str(folder / "ckpt"))
    source = read_checkpoint(folder, vocabulary=VOCABULARY, lowercase=True)
    inputs = make_inputs()
    positions = np.array([[1, 3], [5, 0], [1, 1]], "int32")
    expected = pretrainer(
        {
            **tensorflow_berts.official_inputs(inputs),
            "masked_lm_positions": tf.constant(positions),
        }
    )
    [head] = pretrainer.classification_heads
    pooled = head(expected["sequence_output"], only_project=True)
    assert_same(
        source.build("backbone")(inputs), {**expected, "pooled_output": pooled}
    )
    found = source.build("masked_lm")({**inputs, "mask_positions": positions})
    for ours, theirs in (
        ("masked_lm", "mlm_logits"),
        ("next_sentence", "next_sentence"),
    ):
        np.testing.assert_allclose(found[ours], expected[theirs], atol=3e-5)


@pytest.mark.parametrize("place", ["encoder", None])
def test_what_else_writes_an_encoder(tmp_path, place):
    encoder = tensorflow_berts.make_encoder("bert_v2")
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(encoder.trainable_variables)
    if place is None:
        checkpoint = tf.train.Checkpoint(encoder, optimizer=optimizer)
    else:
        checkpoint = tf.train.Checkpoint(encoder=encoder, optimizer=optimizer)
    checkpoint.write(str(tmp_path / "ckpt"))
    inputs = make_inputs()
    assert_same(
        read_checkpoint(tmp_path).build("backbone")(inputs),
        encoder(tensorflow_berts.official_inputs(inputs)),
    )


def test_layers_that_are_only_numbered(tmp_path, official_checkpoint):
    """As old versions wrote them."""
    reader = tf.train.load_checkpoint(
        str(official_checkpoint / "bert_model.ckpt-1")
    )
    names = reader.get_variable_to_shape_map()
    tensors = {name: reader.get_tensor(name) for name in names}
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        tensors[GRAPH]
    )
    named = ("_embedding_layer", "_transformer_layers", "_pooler_layer")
    for node in graph.nodes:
        for child in list(node.children):
            if child.local_name in named:
                node.children.remove(child)
    tensors[GRAPH] = graph.SerializeToString()
    assert_same_tensors(
        read_checkpoint(write_original(tmp_path, tensors)).tensors,
        read_checkpoint(official_checkpoint).tensors,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 3}, "lacks model/.*_query_dense/kernel"),
        ({"num_layers": 1}, "no place for: model/layer.*VARIABLE_VALUE"),
        ({"vocab_size": 31}, r"embeddings/.* \(29, 15\) instead of \(31, 15\)"),
        ({"norm_first": True}, "norm_first=True"),
        ({"embedding_size": 7}, "embedding_size=7"),
        ({"hidden_activation": "tanh"}, "mlm_activation='gelu'.*'tanh'"),
        ({"mlm_activation": "relu"}, "mlm_activation='relu'"),
        ({"num_attention_heads": 0}, "`num_attention_heads`.*Received: 0"),
        ({"heads": [{"inner_dim": 7}]}, "cls_heads of .*inner_dim=7"),
        ({"kind": "albert"}, "must be bert or bert_v2. Received: 'albert'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_configuration_is_an_error(
    official_checkpoint, tmp_path, change, message
):
    folder = shutil.copytree(official_checkpoint, tmp_path / "a")
    tensorflow_berts.write_params(folder, **change)
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder, lowercase=True).build("backbone")


@pytest.mark.parametrize("text", ["a: [", "7", "task: {model: {encoder: 7}}"])
def test_wrong_params_are_errors(official_checkpoint, tmp_path, text):
    folder = shutil.copytree(official_checkpoint, tmp_path / "a")
    (folder / "params.yaml").write_text(text)
    with pytest.raises(ValueError, match="params.yaml has no task.model.enc"):
        read_checkpoint(folder)


def test_other_objects_are_an_error(tmp_path):
    tensorflow_berts.write_params(tmp_path)
    thing = tf.Variable([1.0])
    tf.train.Checkpoint(thing=thing).write(str(tmp_path / "ckpt"))
    with pytest.raises(ValueError, match="neither.*Received: .*thing"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "task", "message"),
    [
        ({"output_weights": np.ones(2)}, "backbone", "for: output_weights"),
        (
            {"bert/encoder/layer_1/output/LayerNorm/gamma": None},
            "backbone",
            "lacks bert/encoder/layer_1/output/LayerNorm/gamma$",
        ),
        (
            {"cls/seq_relationship/output_bias": None},
            "masked_lm",
            "lacks cls/seq_relationship/output_bias$",
        ),
        (
            {name: None for name in original_tensors() if name[:3] == "cls"},
            "masked_lm",
            "lacks cls/predictions/output_bias, ",
        ),
    ],
    ids=["other", "missing", "missing_of_head", "no_heads"],
)
def test_wrong_tensors_have_their_names(tmp_path, changes, task, message):
    tensors = {
        name: tensor
        for name, tensor in {**original_tensors(), **changes}.items()
        if tensor is not None
    }
    folder = write_original(tmp_path / "a", tensors)
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder, lowercase=True).build(task)


def config(**changes):
    return json.dumps(CONFIG | changes).encode()


DATA = "bert_model.ckpt.data-00000-of-00001"


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("bert_config.json", b"{}", ValueError, "`vocab_size`.*None"),
        ("bert_config.json", config(embedding_size=7), ValueError, "size=7"),
        ("bert_config.json", config(hidden_act="silu"), ValueError, "'silu'"),
        ("bert_config.json", None, FileNotFoundError, "bert_config.json"),
        ("vocab.txt", b"[PAD]\n\xff\n", ValueError, "vocab.txt is not UTF-8"),
        ("bert_model.ckpt.index", None, FileNotFoundError, r"\*.index"),
        (DATA, None, ValueError, "incomplete"),
    ],
)
def test_wrong_and_missing_files_are_errors(
    original, tmp_path, name, content, error, message
):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_checkpoint(folder)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("how", ["cut", "changed"])
def test_damaged_files_are_errors(original, tmp_path, how, ending):
    folder = shutil.copytree(original, tmp_path / "a")
    path = folder / f"bert_model.ckpt.{ending}"
    content = path.read_bytes()
    # Not in what the optimizer left, which nobody reads.
    start = len(content) // 10
    changed = b""
    if how == "changed":
        flipped = bytes(255 - byte for byte in content[start : start + 97])
        changed = flipped + content[start + 97 :]
    path.write_bytes(content[:start] + changed)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(folder)


def test_a_checkpoint_is_found_by_its_prefix_or_alone(tmp_path):
    folder = write_original(tmp_path, original_tensors(), "model.ckpt-31")
    assert read_checkpoint(folder).origin == str(folder / "model.ckpt-31")
    write_original(folder, {"x": np.ones(1, "float32")}, "model.ckpt-2")
    with pytest.raises(OSError, match="'model.ckpt-2', 'model.ckpt-31'"):
        read_checkpoint(folder)
    source = read_checkpoint(folder / "model.ckpt-31")
    assert len(source.tensors) == len(original_tensors())
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        read_checkpoint(folder / "model.ckpt-7")
