"""The verb on each kind of source, and on what is none."""

import importlib

import keras_hub
import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
)
from tests.keras_fixedhead import hugging_face
from tests.training.convert import original_bert
from tests.training.convert.texts import TEXTS, figures

# KerasHub's TextEmbedder has a compile() of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


def test_left_truncation_is_given_up_by_a_flag(tmp_path, run):
    folder = hugging_face.write_model(tmp_path / "theirs")
    hugging_face.write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "truncation_side": "left"},
    )
    said = run(folder, "--pooling", "cls", status=1)
    assert "truncates long texts on the left" in said
    run(folder, "--pooling", "cls", "--truncation_side", "right")


def keras_hub_preset(folder, tokenizer=True, **arguments):
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=41,
        num_layers=2,
        num_heads=3,
        hidden_dim=15,
        intermediate_dim=23,
        max_sequence_length=19,
    )
    rng = np.random.default_rng(3)
    for weight in backbone.weights:
        noise = 0.4 * rng.standard_normal(weight.shape)
        weight.assign(weight.numpy() + noise)
    backbone.save_to_preset(str(folder))
    if tokenizer:
        keras_hub.models.BertTokenizer(
            hugging_face.VOCABULARY, lowercase=True, **arguments
        ).save_to_preset(str(folder))
    return backbone


def test_from_keras_hub(tmp_path, run):
    keras_hub_preset(tmp_path / "theirs", special_tokens_in_strings=True)
    said = run(tmp_path / "theirs", "--pooling", "cls", "--normalize", "False")
    assert max(figures(said, "sequence_output")) < 1e-5
    assert "token ids: 0 of 5 texts differ" in said
    # KerasHub's BERT leaves out [UNK].
    assert "special tokens in texts are ids here: 2 of 10 texts with" in said
    assert "such as 'a [UNK] b'\n" in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.pooling_mode == "cls"
    assert not embedder.normalize
    assert embedder.preprocessor.tokenizer.lowercase
    assert embedder.preprocessor.tokenizer.special_tokens_in_strings


def test_another_unknown_token_of_keras_hub_is_refused(tmp_path, run):
    keras_hub_preset(tmp_path / "theirs", oov_token="[MASK]")
    said = run(tmp_path / "theirs", "--pooling", "cls", status=1)
    assert "`tokenizer` has oov_token='[MASK]'" in said


@pytest.mark.slow
def test_from_an_embedder_of_keras_hub(tmp_path, run):
    bert = keras_hub_preset(tmp_path / "bert")
    keras_hub.models.BertTextEmbedder(
        bert,
        keras_hub.models.BertTextEmbedderPreprocessor(
            keras_hub.models.BertTokenizer(
                hugging_face.VOCABULARY, lowercase=True
            ),
            sequence_length=13,
        ),
        pooling_mode="max",
        normalize=False,
    ).save_to_preset(str(tmp_path / "theirs"))
    run(tmp_path / "theirs")
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.pooling_mode == "max"
    assert not embedder.normalize
    assert embedder.preprocessor.sequence_length == 13
    theirs = keras_hub.models.TextEmbedder.from_preset(str(tmp_path / "theirs"))
    np.testing.assert_allclose(
        embedder.encode_text(TEXTS[:3], verbose=0),
        theirs.predict(TEXTS[:3], verbose=0),
        atol=1e-5,
    )


def test_from_keras_hub_without_a_vocabulary(tmp_path, run):
    theirs = keras_hub_preset(tmp_path / "theirs", tokenizer=False)
    said = run(tmp_path / "theirs", "--task", "backbone")
    assert "compared on random token ids" in said
    assert max(figures(said, "pooled_output")) < 1e-5
    ours = FixedHeadBackbone.from_preset(str(tmp_path / "out"))
    inputs = {
        "token_ids": np.arange(18).reshape(2, 9),
        "segment_ids": np.ones((2, 9), "int32"),
        "padding_mask": np.ones((2, 9), "int32"),
    }
    for name, x in theirs(inputs).items():
        np.testing.assert_allclose(ours(inputs)[name], x, atol=1e-5)


def test_from_an_original(tmp_path, run):
    folder = original_bert.write_original(
        tmp_path / "theirs", original_bert.original_tensors()
    )
    said = run(folder, "--pooling", "cls", status=1)
    assert "lowercase" in said
    said = run(
        folder / "bert_model.ckpt", "--lowercase", "True", "--task", "masked_lm"
    )
    for name in ("sequence_output", "masked_lm", "next_sentence"):
        assert max(figures(said, name)) < 1e-5
    masked_lm = FixedHeadMaskedLM.from_preset(str(tmp_path / "out"))
    assert masked_lm.next_sentence


def test_sources_that_are_none(tmp_path, run, monkeypatch):
    assert "no folder, no checkpoint, no repository of the" in run(
        tmp_path / "nowhere", status=1
    )
    monkeypatch.setattr(
        importlib.import_module("huggingface_hub.constants"),
        "HF_HUB_OFFLINE",
        True,
    )
    for name in ("hf://somebody/some-bert", "somebody/some-bert"):
        said = run(name, status=1)
        assert "call huggingface_hub.snapshot_download('somebody/some" in said
    assert "Download the folder" in run("modelscope://a/b", status=1)
    (tmp_path / "empty").mkdir()
    assert "neither a config.json" in run(tmp_path / "empty", status=1)
    (tmp_path / "model.bin").write_bytes(b"")
    assert "Received a file" in run(tmp_path / "model.bin", status=1)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "config.json").write_text("[1]")
    assert "must hold a JSON object" in run(tmp_path / "list", status=1)
    other = tmp_path / "other"
    keras_hub.models.GPT2Backbone(11, 1, 1, 2, 3).save_to_preset(str(other))
    assert "is a preset of GPT2Backbone" in run(other, status=1)
