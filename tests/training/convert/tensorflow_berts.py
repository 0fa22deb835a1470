"""Small BERTs of google-research/bert and of tf-models-official."""

import json
import shutil

import numpy as np
import tensorflow as tf
import yaml
from official.legacy.bert import configs
from official.modeling import tf_utils
from official.nlp.configs import bert, encoders
from official.nlp.modeling import layers, models
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter

# D is 3 heads of 5; where both fit, a kernel is square.
CONFIG = {
    "vocab_size": 29,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_act": "gelu",
    "intermediate_size": 19,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 13,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
    f"word{i}" for i in range(24)
]


def original_tensors(seed=7):
    """Random tensors by their names in the file, none of them trivial."""
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], width),
        "bert/embeddings/position_embeddings": (13, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "cls/predictions/output_bias": (CONFIG["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {
        "bert/pooler/dense": (width, width),
        "cls/predictions/transform/dense": (width, width),
    }
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{i}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            dense[f"{layer}/attention/{name}"] = (width, width)
        dense[f"{layer}/intermediate/dense"] = (width, inner)
        dense[f"{layer}/output/dense"] = (inner, width)
        norms += [
            f"{layer}/attention/output/LayerNorm",
            f"{layer}/output/LayerNorm",
        ]
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/gamma": (width,), f"{name}/beta": (width,)}
    random = np.random.default_rng(seed)
    return {
        name: random.normal(name.endswith("gamma"), 0.4, shape).astype(
            "float32"
        )
        for name, shape in shapes.items()
    }


def write_original(folder, tensors, name="bert_model.ckpt"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tf.raw_ops.SaveV2(
        prefix=str(folder / name),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    return folder


def make_inputs():
    """Inputs of three texts, the shorter ones padded: int32 `[B, T]`."""
    rng = np.random.default_rng(3)
    shape = 3, 11
    return {
        "token_ids": rng.integers(0, 29, shape).astype("int32"),
        "segment_ids": rng.integers(0, 2, shape).astype("int32"),
        "padding_mask": (np.arange(11) < [[11], [7], [2]]).astype("int32"),
    }


def assert_same(found, expected, atol=1e-5):
    """Compares an encoder's outputs for `make_inputs`, where it attends."""
    real = make_inputs()["padding_mask"].astype(bool)
    for name in ("sequence_output", "pooled_output"):
        a, b = np.asarray(found[name]), np.asarray(expected[name])
        if name == "sequence_output":
            a, b = a[real], b[real]
        assert a.std() > 0.1
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=name)


_SIZES = {
    "vocab_size": 29,
    "hidden_size": 15,
    "num_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 13,
    "type_vocab_size": 2,
    "intermediate_size": 19,
}
HEAD = {"inner_dim": 15, "num_classes": 2, "name": "next_sentence"}


def convert(folder, original, kind):
    """What tf-models-official makes of an original checkpoint."""
    tf2_bert_encoder_checkpoint_converter.convert_checkpoint(
        configs.BertConfig.from_dict(CONFIG),
        str(folder / "bert_model.ckpt"),
        str(original / "bert_model.ckpt"),
        checkpoint_model_name="model",
        converted_model=kind,
    )
    shutil.copy(original / "bert_config.json", folder)
    shutil.copy(original / "vocab.txt", folder)
    return folder


def run_encoder(converted, inputs):
    """What its own encoder computes with a converted checkpoint."""
    encoder = _build("bert")
    status = tf.train.Checkpoint(model=encoder).read(
        str(converted / "bert_model.ckpt-1")
    )
    status.assert_existing_objects_matched().expect_partial()
    outputs = encoder(official_inputs(inputs))
    return {
        name: outputs[name].numpy()
        for name in ("sequence_output", "pooled_output")
    }


def official_inputs(inputs):
    return {
        "input_word_ids": tf.constant(inputs["token_ids"]),
        "input_mask": tf.constant(inputs["padding_mask"]),
        "input_type_ids": tf.constant(inputs["segment_ids"]),
    }


def make_encoder(kind):
    """Builds a `bert` or `bert_v2` with random weights."""
    encoder = _build(kind)
    encoder(encoder.inputs)
    return _randomize(encoder)


def make_pretrainer(kind):
    """Builds a pretrainer of one with a head for next sentences."""
    pretrainer = models.BertPretrainerV2(
        _build(kind),
        mlm_activation=tf_utils.get_activation("gelu"),
        classification_heads=[layers.ClassificationHead(**HEAD)],
    )
    pretrainer(pretrainer.inputs)
    return _randomize(pretrainer)


def _build(kind):
    config = encoders.BertEncoderConfig(**_SIZES)
    return encoders.build_encoder(
        encoders.EncoderConfig(type=kind, **{kind: config})
    )


def _randomize(model):
    """Random weights, also where a fresh layer's do nothing."""
    random = np.random.default_rng(11)
    for weight in model.weights:
        mean = 1.0 if "gamma" in weight.name else 0.0
        weight.assign(random.normal(mean, 0.4, weight.shape))
    return model


def write_params(folder, kind="bert", heads=(), **changes):
    """Writes the `params.yaml` of an experiment."""
    encoder = encoders.BertEncoderConfig(**_SIZES).as_dict()
    heads = [bert.ClsHeadConfig(**{**HEAD, **x}).as_dict() for x in heads]
    model = {
        "cls_heads": heads,
        "mlm_activation": changes.pop("mlm_activation", "gelu"),
        "encoder": {"type": kind, kind: {**encoder, **changes}},
    }
    params = {"runtime": {"num_gpus": 0}, "task": {"model": model}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder
