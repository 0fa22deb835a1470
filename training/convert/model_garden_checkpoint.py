"""Checkpoints of tf-models-official: object graphs of TensorFlow 2."""

import collections

import tensorflow as tf
import yaml
from official.modeling import tf_utils
from official.nlp.configs import bert, encoders
from official.nlp.modeling import layers, models, networks
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_fixedhead.convert.vocabulary import read_vocabulary
from training.convert.model_garden import check_model, read_model_garden
from training.convert.original import CONFIG, VOCABULARY, read_bert_config
from training.convert.tensorflow_files import (
    OBJECT_GRAPH,
    find_checkpoint,
    open_checkpoint,
    read_tensor,
)

PARAMS = "params.yaml"

# Where they save a model: `Checkpoint(model=...)`, `Checkpoint(encoder=...)`
# and `Checkpoint(...)`, or `save_weights`.
_PLACES = ("model", "encoder", None)

# What is not the model's: the trainer's, and what `save_weights` adds.
_OF_TRAINING = {"optimizer", "global_step", "save_counter", "keras_api"}

# What their code raises for values that it does not expect.
_ERRORS = (ArithmeticError, AttributeError, TypeError, ValueError)


def read_model_garden_checkpoint(path, **overrides):
    """Reads a checkpoint of tf-models-official.

    It holds a `BertEncoder`, `BertEncoderV2` or `BertPretrainerV2`. Where a
    folder has both files that describe one, `params.yaml` counts, which says
    more.

    Args:
        path: a folder with a checkpoint, with `params.yaml` (the experiment
            it was made in) or `bert_config.json`, and perhaps `vocab.txt`;
            or the prefix of a checkpoint beside these.
        **overrides: what to take instead of what the files say, or where
            they do not: no file says `lowercase`. See `BertSource`.

    Returns:
        A `BertSource`; see `read_model_garden`.

    Raises:
        OSError: if a file is missing.
        ValueError: if a file is damaged or of something else; if a tensor
            is missing, of a shape that does not fit, or not used.
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
    """The objects of a checkpoint, and its variables among them."""

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
        """Finds what was saved.

        Returns:
            Where it is, one of `_PLACES`; the class of its encoder; and
            whether it is a pretrainer, an encoder with heads.
        """
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
        """Compares variables with those of a model, one by one.

        Raises:
            ValueError: One is missing, not used, or of another shape.
        """
        view = tf.train.CheckpointView(str(self._prefix))
        keys = self._variables()
        matched = {
            node: found
            for node, found in view.match(root).items()
            if node in keys
        }
        here = {id(variable) for variable in matched.values()}
        spelled = _keys(root)
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

    def _variables(self):
        """Keys of the model's variables by node.

        All that is reached from the root, but not by way of the optimizer.
        Its moments are nobody's children.
        """
        keys, seen, queue = {}, {0}, collections.deque([0])
        while queue:
            node = queue.popleft()
            for attribute in self._nodes[node].attributes:
                if attribute.name == "VARIABLE_VALUE":
                    keys[node] = attribute.checkpoint_key
            for name, child in self._children(node).items():
                if name not in _OF_TRAINING and child not in seen:
                    seen.add(child)
                    queue.append(child)
        return keys


def _keys(root):
    """What a checkpoint of `root` calls its variables, by their `id`.

    The shortest way from the root, as TensorFlow names them.
    """
    view = tf.train.TrackableView(root)
    keys, queue = {id(root): ""}, collections.deque([root])
    while queue:
        parent = queue.popleft()
        for name, child in view.children(parent).items():
            if id(child) not in keys:
                keys[id(child)] = f"{keys[id(parent)]}{name}/"
                queue.append(child)
    return {x: f"{key}.ATTRIBUTES/VARIABLE_VALUE" for x, key in keys.items()}


def _build(folder, encoder_class, has_heads):
    """The model that a folder describes, with random weights or none."""
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
            # What follows is a trace of gin's.
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
            f"{folder} has neither {PARAMS} nor {CONFIG}, which say what the "
            "checkpoint holds"
        )
    if not has_heads:
        return encoder
    return models.BertPretrainerV2(
        encoder, mlm_activation=activation, classification_heads=heads
    )


def _make_weights(model, encoder):
    """Calls each part once, as layers make their weights then."""
    encoder(encoder.inputs)
    if model is not encoder:
        sequence = tf.zeros((1, 1, encoder.get_config()["hidden_size"]))
        model.masked_lm(sequence, masked_positions=tf.zeros((1, 1), "int32"))
        for head in model.classification_heads:
            head(sequence)


def _read_params(path):
    """The model of an experiment, a `PretrainerConfig`."""
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
            f"{path} has no task.model.encoder, which says what the "
            "checkpoint holds"
        )
    kind = found["encoder"].get("type", "bert")
    if kind not in ("bert", "bert_v2"):
        raise ValueError(
            f"`type` of task.model.encoder in {path} must be bert or bert_v2. "
            f"Received: {kind!r}"
        )
    # Other tasks have fields of their own beside the encoder.
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
