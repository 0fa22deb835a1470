"""Small BERTs of tf-models-official."""

import shutil

import numpy as np
import tensorflow as tf
import yaml
from official.legacy.bert import configs
from official.modeling import tf_utils
from official.nlp.configs import bert, encoders
from official.nlp.modeling import layers, models
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter

from tests.training.convert.original_bert import CONFIG

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
