"""Small BERTs of tf-models-official."""

import functools
import shutil

import numpy as np
import tensorflow as tf
import yaml
from official.legacy.bert import configs
from official.modeling import tf_utils
from official.nlp.configs import encoders
from official.nlp.modeling import layers, models, networks
from official.nlp.tools import tf2_bert_encoder_checkpoint_converter

from tests.training.convert.original_bert import CONFIG

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
_ENCODERS = {"v1": networks.BertEncoder, "v2": networks.BertEncoderV2}


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


def restore(converted):
    encoder = networks.BertEncoder(
        **SIZES, inner_activation=GELUS["gelu_approximate"]
    )
    checkpoint = tf.train.Checkpoint(model=encoder)
    status = checkpoint.read(str(converted / "bert_model.ckpt-1"))
    status.assert_existing_objects_matched().expect_partial()
    return encoder


def run(encoder, inputs):
    """The encoder's own outputs, called as its own code calls it."""
    outputs = encoder(official_inputs(inputs))
    if not isinstance(outputs, dict):
        outputs = dict(zip(("sequence_output", "pooled_output"), outputs))
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


def randomize(model, seed=11):
    """Random weights, also where a fresh layer's do nothing."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        mean = 1.0 if "gamma" in weight.name else 0.0
        weight.assign(random.normal(mean, 0.4, weight.shape))
    return model


def make_encoder(version, activation="gelu_approximate", **arguments):
    encoder = _ENCODERS[version](
        **{**SIZES, "inner_activation": GELUS[activation], **arguments}
    )
    encoder(encoder.inputs)
    return randomize(encoder)


@functools.cache
def shared_encoder(version):
    """One that tests do not change, or change back."""
    return make_encoder(version)


def make_head(**changes):
    arguments = {"inner_dim": 15, "num_classes": 2, "name": "next_sentence"}
    return layers.ClassificationHead(**{**arguments, **changes})


def make_pretrainer(version="v2", head=True, **encoder):
    """A pretrainer, perhaps with a head for next sentences."""
    pretrainer = models.BertPretrainerV2(
        make_encoder(version, **encoder),
        mlm_activation=GELUS["gelu_approximate"],
        classification_heads=[make_head()] if head else [],
    )
    pretrainer(pretrainer.inputs)
    return randomize(pretrainer)


def write_params(folder, kind, heads=(), **bert):
    """Writes the `params.yaml` of an experiment."""
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
