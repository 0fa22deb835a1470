"""Checkpoints of tf-models-official, as its tools and trainers write them."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tests.training.convert import official_bert
from tests.training.convert.official_bert import (
    make_encoder,
    make_pretrainer,
    shared_encoder,
    write_params,
)
from tests.training.convert.original_bert import (
    CONFIG,
    VOCABULARY,
    assert_same,
    make_inputs,
    write_original,
)
from training.convert.model_garden import read_model_garden
from training.convert.model_garden_checkpoint import (
    read_model_garden_checkpoint,
)
from training.convert.original import OBJECT_GRAPH, read_original

pytestmark = pytest.mark.filterwarnings(
    "ignore:Input dict contained keys .'masked_lm_positions'.:UserWarning"
)

KINDS = {"v1": "bert", "v2": "bert_v2"}


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize(
    "attribute", ["model", pytest.param("encoder", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "kind", [pytest.param("encoder", marks=pytest.mark.slow), "pretrainer"]
)
def test_what_official_converts(original, official, tmp_path, kind, attribute):
    folder = official_bert.convert(tmp_path, original, attribute, kind)
    source = read_model_garden_checkpoint(folder, lowercase=True)
    inputs = make_inputs()
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
    assert_same_tensors(source.tensors, expected)
    assert source.config == first.config


def test_a_checkpoint_is_found_by_its_prefix(official_checkpoint):
    source = read_model_garden_checkpoint(
        official_checkpoint / "bert_model.ckpt-1", vocabulary=VOCABULARY[:7]
    )
    assert source.origin == str(official_checkpoint / "bert_model.ckpt-1")
    assert source.vocabulary == VOCABULARY[:7]


def test_of_two_configurations_params_count(official_checkpoint, tmp_path):
    folder = shutil.copytree(official_checkpoint, tmp_path / "a")
    write_params(folder, "bert", hidden_activation="relu")
    source = read_model_garden_checkpoint(folder)
    assert source.config["activation"] == "relu"


@pytest.mark.parametrize(
    "version", ["v1", pytest.param("v2", marks=pytest.mark.slow)]
)
def test_what_a_trainer_writes(tmp_path, version):
    """`official.core.base_trainer.Trainer` makes this checkpoint."""
    pretrainer = make_pretrainer(version, dict_outputs=True)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(pretrainer.trainable_variables)
    folder = write_params(
        tmp_path / "a",
        KINDS[version],
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
    assert_same_tensors(source.tensors, expected.tensors)
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
    # Adam leaves alone what has no gradient.
    encoder = shared_encoder(version)
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    if legacy:
        optimizer = tf_keras.optimizers.legacy.Adam()
        optimizer.apply_gradients(
            (tf.zeros_like(weight), weight)
            for weight in encoder.trainable_variables
        )
        tf.train.Checkpoint(model=encoder, optimizer=optimizer).save(
            str(tmp_path / "ckpt")
        )
    else:
        tf.train.Checkpoint(encoder).write(str(tmp_path / "ckpt"))
    source = read_model_garden_checkpoint(tmp_path)
    assert_same_tensors(source.tensors, read_model_garden(encoder).tensors)


@pytest.mark.parametrize("moved", ["layer-", "layer_with_weights-"])
def test_layers_may_be_counted_otherwise(tmp_path, moved):
    """As versions do: a model's layers without weights come and go."""
    live = shared_encoder("v1")
    written = tf.train.Checkpoint(model=live).write(str(tmp_path / "b" / "b"))
    reader = tf.train.load_checkpoint(written)
    names = reader.get_variable_to_shape_map()
    tensors = {name: reader.get_tensor(name) for name in names}
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    graph.ParseFromString(tensors[OBJECT_GRAPH])
    [model] = [x.node_id for x in graph.nodes[0].children]
    children = graph.nodes[model].children
    kept = []
    for child in children:
        name = child.local_name
        if name.startswith(moved):
            name = f"{moved}{int(name.removeprefix(moved)) + 1}"
        # Nor did all versions name layers otherwise than by numbers.
        if name.startswith("layer"):
            kept.append((name, child.node_id))
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
    assert_same_tensors(source.tensors, read_model_garden(live).tensors)


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
def test_another_configuration_is_an_error(tmp_path, change, message):
    folder = write_params(tmp_path / "a", "bert", **change)
    checkpoint = tf.train.Checkpoint(model=shared_encoder("v1"))
    checkpoint.save(str(folder / "ckpt"))
    with pytest.raises(ValueError, match=message):
        read_model_garden_checkpoint(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: {"model": shared_encoder("v2"), "more": tf.Variable([1.0])},
            "no place for: more/.ATTRIBUTES",
        ),
        (
            lambda: {"model": make_pretrainer()},
            "no place for: model/classification_heads/0/dense",
        ),
        (
            lambda: {"thing": tf.Variable([1.0])},
            "neither.*Received: .*thing",
        ),
    ],
    ids=["more", "heads", "other"],
)
def test_other_objects_are_an_error(tmp_path, make, message):
    folder = write_params(tmp_path / "a", "bert_v2")
    tf.train.Checkpoint(**make()).save(str(folder / "ckpt"))
    with pytest.raises(ValueError, match=message):
        read_model_garden_checkpoint(folder)


@pytest.mark.parametrize(("version", "place"), [("v1", "model"), ("v2", None)])
def test_missing_tensors_are_named_as_tensorflow_would(
    tmp_path, version, place
):
    def write(name, model):
        folder = write_params(tmp_path / name, KINDS[version], num_layers=3)
        if place is None:
            checkpoint = tf.train.Checkpoint(model)
        else:
            checkpoint = tf.train.Checkpoint(**{place: model})
        path = checkpoint.write(str(folder / "ckpt"))
        return folder, {name for name, _ in tf.train.list_variables(path)}

    folder, there = write("a", shared_encoder(version))
    _, expected = write("b", make_encoder(version, num_layers=3))
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
def test_wrong_params_are_errors(official_checkpoint, tmp_path, text, message):
    folder = shutil.copytree(official_checkpoint, tmp_path / "a")
    (folder / "params.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_model_garden_checkpoint(folder)


def test_a_checkpoint_alone_is_an_error(official_checkpoint, tmp_path):
    folder = shutil.copytree(official_checkpoint, tmp_path / "a")
    (folder / "bert_config.json").unlink()
    with pytest.raises(FileNotFoundError, match="neither params.yaml nor"):
        read_model_garden_checkpoint(folder)
