"""Checkpoints of tf-models-official: object graphs of TensorFlow 2."""

import collections
import pathlib
import typing

import tensorflow as tf
import yaml
from official.modeling import tf_utils
from official.nlp.configs import bert, encoders
from official.nlp.modeling import layers, models, networks
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_fixedhead.convert import BertSource
from keras_fixedhead.convert.bert_files import read_vocabulary
from training.convert.model_garden import check_model, read_model_garden
from training.convert.original import (
    CONFIG,
    OBJECT_GRAPH,
    VOCABULARY,
    find_checkpoint,
    open_checkpoint,
    read_bert_config,
    read_tensor,
)

PARAMS = "params.yaml"

# A model is saved by `Checkpoint(model=...)`, by `Checkpoint(encoder=...)`, or
# as the root, by `Checkpoint(...)` and `save_weights`.
_PLACES = ("model", "encoder", None)

# What the trainer and `save_weights` save beside the model.
_OF_TRAINING = {"optimizer", "global_step", "save_counter", "keras_api"}

# What tf-models-official raises for unexpected values.
_ERRORS = (ArithmeticError, AttributeError, TypeError, ValueError)


def read_model_garden_checkpoint(
    path: str | pathlib.Path, **overrides: typing.Any
) -> BertSource:
    """Reads a checkpoint of tf-models-official; see `read_model_garden`.

    `path` is a folder with a checkpoint, with `params.yaml` (its experiment)
    or `bert_config.json`, and perhaps `vocab.txt`; or the prefix of a
    checkpoint beside these. Of both configurations `params.yaml` counts,
    which says more.
    """
    prefix = find_checkpoint(path)
    reader = open_checkpoint(prefix)
    graph = _ObjectGraph(reader, prefix)
    place, encoder_class, has_heads = graph.find_model()
    model = _build(prefix.parent, encoder_class, has_heads)
    _make_weights(model, check_model(model, str(prefix)))
    if place is None:
        checkpoint = tf.train.Checkpoint(model)
    else:
        checkpoint = tf.train.Checkpoint(**{place: model})
    graph.check(model if place is None else checkpoint, model)
    try:
        status = checkpoint.read(str(prefix))
        status.assert_existing_objects_matched().expect_partial()
    except (tf.errors.OpError, ValueError, AssertionError) as error:
        raise ValueError(f"{prefix} cannot be restored: {error}") from error
    vocabulary = prefix.parent / VOCABULARY
    if "vocabulary" not in overrides and vocabulary.exists():
        overrides["vocabulary"] = read_vocabulary(vocabulary)
    return read_model_garden(model, origin=str(prefix), **overrides)


class _ObjectGraph:
    """The object graph that a checkpoint holds, with its variables."""

    def __init__(self, reader, prefix):
        self._prefix = prefix
        self._shapes = reader.get_variable_to_shape_map()
        if OBJECT_GRAPH not in self._shapes:
            raise ValueError(
                f"{prefix} is a checkpoint of TensorFlow 1, not one of "
                "tf-models-official. Read it with read_original"
            )
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        graph.ParseFromString(read_tensor(reader, OBJECT_GRAPH, prefix))
        self._nodes = graph.nodes

    def find_model(self):
        """Returns one of `_PLACES`, the encoder's class and if it has heads."""
        for place in _PLACES:
            node = 0 if place is None else self._children(0).get(place)
            if node is None:
                continue
            children = self._children(node)
            has_heads = {"encoder_network", "masked_lm"} <= children.keys()
            if has_heads:
                children = self._children(children["encoder_network"])
            first = children.get("layer_with_weights-0")
            if first is not None and "embeddings" in self._children(first):
                return place, networks.BertEncoder, has_heads
            if first is None and "_embedding_layer" in children:
                return place, networks.BertEncoderV2, has_heads
        raise ValueError(
            f"{self._prefix} holds neither a BertEncoder, a BertEncoderV2 nor "
            "a BertPretrainerV2, as `model`, as `encoder` or as its root. "
            f"Received: {', '.join(sorted(self._children(0)))}"
        )

    def check(self, root, model):
        """Refuses missing, unused and misshaped variables of a model."""
        nodes = _walk(0, self._children, int)
        # Without the optimizer's moments, which have no parent.
        keys = {
            node: attribute.checkpoint_key
            for node, _ in nodes
            for attribute in self._nodes[node].attributes
            if attribute.name == "VARIABLE_VALUE"
        }
        found = tf.train.CheckpointView(str(self._prefix)).match(root)
        matched = {node: found[node] for node in found if node in keys}
        here = {id(variable) for variable in matched.values()}
        paths = _walk(root, tf.train.TrackableView(root).children, id)
        spelled = {
            id(x): f"{path}.ATTRIBUTES/VARIABLE_VALUE" for x, path in paths
        }
        missing = [spelled[id(x)] for x in model.variables if id(x) not in here]
        unused = [key for node, key in keys.items() if node not in matched]
        wrong = [
            f"{keys[node]} {tuple(self._shapes[keys[node]])} instead of "
            f"{tuple(variable.shape)}"
            for node, variable in matched.items()
            if list(variable.shape) != list(self._shapes[keys[node]])
        ]
        for names, problem in (
            (missing, "lacks"),
            (unused, "holds what its configuration has no place for:"),
            (wrong, "has shapes that do not fit its configuration:"),
        ):
            if names:
                raise ValueError(
                    f"{self._prefix} {problem} {', '.join(sorted(names))}"
                )

    def _children(self, node):
        return {x.local_name: x.node_id for x in self._nodes[node].children}


def _walk(root, children, identity):
    """Yields all that `root` reaches without the optimizer, with its path.

    The path is the shortest, as TensorFlow has it in keys of variables.
    """
    seen, queue = {identity(root)}, collections.deque([(root, "")])
    while queue:
        parent, path = queue.popleft()
        yield parent, path
        for name, child in children(parent).items():
            if name not in _OF_TRAINING and identity(child) not in seen:
                seen.add(identity(child))
                queue.append((child, f"{path}{name}/"))


def _build(folder, encoder_class, has_heads):
    """Builds the model that a folder describes, perhaps without weights."""
    if (folder / PARAMS).exists():
        params = _read_params(folder / PARAMS)
        try:
            encoder = encoders.build_encoder(params.encoder)
            activation = tf_utils.get_activation(params.mlm_activation)
            heads = [
                layers.ClassificationHead(**head.as_dict())
                for head in params.cls_heads or ()
            ]
        except _ERRORS as error:
            # A trace of gin follows the first line.
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"{folder / PARAMS} does not describe a BERT: {reason}"
            ) from error
    elif (folder / CONFIG).exists():
        config = read_bert_config(folder / CONFIG)
        activation = tf_utils.get_activation(config["hidden_act"])
        heads = []
        encoder = encoder_class(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            max_sequence_length=config["max_position_embeddings"],
            type_vocab_size=config["type_vocab_size"],
            inner_dim=config["intermediate_size"],
            inner_activation=activation,
            output_dropout=config["hidden_dropout_prob"],
        )
    else:
        raise FileNotFoundError(
            f"{folder} has neither {PARAMS} nor {CONFIG}, which describe the "
            "checkpoint"
        )
    if not has_heads:
        return encoder
    return models.BertPretrainerV2(
        encoder, mlm_activation=activation, classification_heads=heads
    )


def _make_weights(model, encoder):
    """Calls each part once, so that its layers make their weights."""
    encoder(encoder.inputs)
    if model is not encoder:
        sequence = tf.zeros((1, 1, encoder.get_config()["hidden_size"]))
        model.masked_lm(sequence, masked_positions=tf.zeros((1, 1), "int32"))
        for head in model.classification_heads:
            head(sequence)


def _read_params(path):
    """Reads an experiment's model, a `PretrainerConfig`."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    for name in ("task", "model"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(
        found.get("encoder"), dict
    ):
        raise ValueError(
            f"{path} has no task.model.encoder, which describes the checkpoint"
        )
    kind = found["encoder"].get("type", "bert")
    if kind not in ("bert", "bert_v2"):
        raise ValueError(
            f"`type` of task.model.encoder in {path} must be bert or bert_v2. "
            f"Received: {kind!r}"
        )
    # Other tasks have more fields beside the encoder.
    names = ("cls_heads", "mlm_activation")
    try:
        params = bert.PretrainerConfig()
        params.override(
            {
                "encoder": {
                    "type": kind,
                    kind: found["encoder"].get(kind) or {},
                },
                **{name: found[name] for name in names if name in found},
            }
        )
        return params
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not as expected: {error}") from error
