"""BERTs in TensorFlow's checkpoints, by tensor names.

google-research/bert writes those of TensorFlow 1, and tf-models-official the
object graphs of TensorFlow 2. Shape letter: D embedding size.
"""

import pathlib
import re
import typing

import tensorflow as tf
import yaml
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_fixedhead.convert import BertSource, bert_files, bert_source

_USUAL = "bert_model.ckpt"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# What a `tf.train.CheckpointReader` raises; an IndexError is a short file.
_ERRORS = (tf.errors.OpError, RuntimeError, LookupError, ValueError)

# Both projects' `gelu` is the approximation by tanh.
_ACTIVATIONS = {"gelu": "gelu_approximate", "relu": "relu"}

# What training saves beside the model, in TensorFlow 1 and 2.
_OF_TRAINING = re.compile(
    r"(.*/)?(global_step|beta[12]_power|(adam|Adam)(_\w+)?)"
    r"|(optimizer|global_step|save_counter|keras_api)/.*|.*/\.OPTIMIZER_SLOT/.*"
)

# Names of google-research/bert that differ from those of `BertSource`.
_SPELLED = {
    "cls/seq_relationship/kernel": "cls/seq_relationship/output_weights",
    "cls/seq_relationship/bias": "cls/seq_relationship/output_bias",
}

# Layers of tf-models-official's block, in the order of `BLOCK_LAYERS`.
_BLOCK_PATHS = (
    "_attention_layer/_query_dense",
    "_attention_layer/_key_dense",
    "_attention_layer/_value_dense",
    "_attention_layer/_output_dense",
    "_attention_layer_norm",
    "_intermediate_dense",
    "_output_dense",
    "_output_layer_norm",
)


def read_checkpoint(
    path: str | pathlib.Path, **overrides: typing.Any
) -> BertSource:
    """Reads a checkpoint of google-research/bert or tf-models-official.

    `path` is a folder with one checkpoint (or `bert_model.ckpt`), its
    `bert_config.json` and perhaps `vocab.txt`, or the prefix of a checkpoint
    beside these. An experiment's `params.yaml` counts before
    `bert_config.json`. `overrides` are attributes of `BertSource`; the files
    do not state `lowercase`.
    """
    prefix = _find_checkpoint(pathlib.Path(path))
    tensors = _read_tensors(prefix)
    vocabulary = prefix.parent / "vocab.txt"
    if "vocabulary" not in overrides and vocabulary.exists():
        overrides["vocabulary"] = bert_files.read_vocabulary(vocabulary)
    config, has_head = _read_config(prefix.parent)
    if _OBJECT_GRAPH in tensors:
        tensors, spelled = _of_object_graph(
            tensors, prefix, config["num_layers"], has_head
        )
    else:
        spelled = _SPELLED
        for ours, theirs in _SPELLED.items():
            if theirs in tensors:
                # [2, D] -> [D, 2]; the bias stays as it is.
                tensors[ours] = tensors.pop(theirs).T
    return BertSource(
        origin=str(prefix),
        config=config,
        tensors=tensors,
        spell=lambda name: spelled.get(name, name),
        **overrides,
    )


def _find_checkpoint(path):
    """Returns a checkpoint's prefix: its files' names up to `.index`."""
    if not path.is_dir():
        if not pathlib.Path(f"{path}.index").exists():
            raise FileNotFoundError(
                f"{path} is neither a folder nor the prefix of a checkpoint: "
                f"there is no {path.name}.index"
            )
        return path
    names = [index.stem for index in path.glob("*.index")]
    if _USUAL in names:
        names = [_USUAL]
    if len(names) != 1:
        raise FileNotFoundError(
            f"{path} must have a config.json of Hugging Face or KerasHub, or "
            "one checkpoint of TensorFlow (*.index; of several, pass the path "
            f"of one without .index). Received: {sorted(names)}"
        )
    return path / names[0]


def _read_tensors(prefix):
    """Reads what a checkpoint holds, without what only training needs."""
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {
            name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()
            if not _OF_TRAINING.fullmatch(name)
        }
    except _ERRORS as error:
        raise ValueError(
            f"{prefix} is damaged or incomplete: {error}"
        ) from error


def _arguments(config, path):
    """Arguments of a `FixedHeadBackbone`, from fields of `bert_config.json`."""
    arguments = bert_files.read_arguments(config, path, _ACTIVATIONS)
    # Token embeddings are as wide as the model.
    bert_files.require_values(
        config, {"embedding_size": arguments["hidden_dim"]}, path
    )
    # Both projects' layer norms have this epsilon.
    return {**arguments, "layer_norm_epsilon": 1e-12}


def _read_config(folder):
    """Reads `params.yaml`, or else `bert_config.json`.

    Returns arguments of a `FixedHeadBackbone`, and whether `params.yaml` names
    a head for next sentences.
    """
    path = folder / "params.yaml"
    if not path.exists():
        path = folder / "bert_config.json"
        return _arguments(bert_files.read_json(path), path), False
    try:
        params = yaml.safe_load(path.read_text(encoding="utf-8"))
        model = params["task"]["model"]
        kind = model["encoder"].get("type", "bert")
        encoder = dict(model["encoder"][kind])
    except (
        yaml.YAMLError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} has no task.model.encoder with a `type` and its "
            f"parameters: {error!r}"
        ) from error
    if kind not in ("bert", "bert_v2"):
        raise ValueError(
            f"`type` of task.model.encoder in {path} must be bert or bert_v2. "
            f"Received: {kind!r}"
        )
    # This import takes seconds.
    from official.nlp.configs.encoders import BertEncoderConfig

    encoder = {**BertEncoderConfig().as_dict(), **encoder}
    bert_files.require_values(
        encoder, {"norm_first": False, "output_range": None}, path
    )
    activation = encoder["hidden_activation"]
    bert_files.require_values(model, {"mlm_activation": activation}, path)
    names = {
        "num_layers": "num_hidden_layers",
        "hidden_activation": "hidden_act",
        "dropout_rate": "hidden_dropout_prob",
    }
    config = {names.get(name, name): x for name, x in encoder.items()}
    usual = {
        "name": "next_sentence",
        "inner_dim": encoder["hidden_size"],
        "num_classes": 2,
        "activation": "tanh",
        "cls_token_idx": 0,
    }
    heads = model.get("cls_heads") or []
    for head in heads:
        bert_files.require_values(head, usual, f"cls_heads of {path}")
    return _arguments(config, path), bool(heads)


def _of_object_graph(tensors, prefix, num_layers, has_head):
    """Returns tensors by the names of `BertSource`, and these names' keys.

    Tensors that a BERT does not have keep their keys.
    """
    nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        tensors.pop(_OBJECT_GRAPH)
    ).nodes

    def key_of(path):
        """Returns the key of an object's value, `None` without the object.

        The key is the path of one reference to the object; it may have others.
        """
        node = nodes[0]
        for name in path.split("/"):
            ids = {x.local_name: x.node_id for x in node.children}
            if name not in ids:
                return None
            node = nodes[ids[name]]
        return next((x.checkpoint_key for x in node.attributes), None)

    parts = _find_model(key_of, num_layers)
    if parts is None:
        children = sorted(x.local_name for x in nodes[0].children)
        raise ValueError(
            f"{prefix} holds neither a BertEncoder, a BertEncoderV2 nor a "
            "BertPretrainerV2, as `model`, as `encoder` or as its root. "
            f"Received: {', '.join(children)}"
        )
    model, (*tables, norm), (*blocks, pooler) = parts
    layers = {
        bert_source.EMBEDDINGS_NORM: norm,
        bert_source.POOLER: pooler,
        bert_source.MASKED_LM_DENSE: f"{model}masked_lm/dense",
        bert_source.MASKED_LM_NORM: f"{model}masked_lm/layer_norm",
    }
    for i, block in enumerate(blocks):
        for name, path in zip(bert_source.BLOCK_LAYERS, _BLOCK_PATHS):
            layers[f"bert/encoder/layer_{i}/{name}"] = f"{block}/{path}"
    head = f"{model}classification_heads/0"
    if has_head and key_of(f"{head}/dense/kernel") is not None:
        # Pre-training leaves the encoder's own pooler untrained.
        for kind in ("kernel", "bias"):
            tensors.pop(key_of(f"{pooler}/{kind}"), None)
        layers[bert_source.POOLER] = f"{head}/dense"
        layers[bert_source.NEXT_SENTENCE] = f"{head}/out_proj"
    paths = {bert_source.MASKED_LM_BIAS: f"{model}masked_lm/bias"}
    for name, path in zip(bert_source.EMBEDDING_TABLES, tables, strict=True):
        paths[name] = f"{path}/embeddings"
    for name, path in layers.items():
        for weight in bert_source.weight_names(name):
            paths[weight] = f"{path}/{weight.rpartition('/')[2]}"
    keys = {name: key_of(path) or path for name, path in paths.items()}
    found = {name: tensors[x] for name, x in keys.items() if x in tensors}
    used = set(keys.values())
    others = {key: x for key, x in tensors.items() if key not in used}
    return bert_source.join_heads(found) | others, keys


def _find_model(key_of, num_layers):
    """Returns the path of a model, those of its encoder's embeddings and their
    norm, and those of its blocks and pooler."""
    names = [
        "_embedding_layer",
        "_position_embedding_layer",
        "_type_embedding_layer",
        "_embedding_norm_layer",
        *(f"_transformer_layers/{i}" for i in range(num_layers)),
        "_pooler_layer",
    ]
    # Old versions of BertEncoder only number their layers.
    numbers = [f"layer_with_weights-{i}" for i in range(len(names))]
    for model in ("model/", "encoder/", ""):
        for encoder in (f"{model}encoder_network/", model):
            for layers in (names, numbers):
                if key_of(f"{encoder}{layers[0]}/embeddings") is not None:
                    paths = [f"{encoder}{layer}" for layer in layers]
                    return model, paths[:4], paths[4:]
    return None
