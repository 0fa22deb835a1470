"""The verb: from any source to a preset, and its errors."""

import contextlib
import importlib
import io
import json
import re
import shutil

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert import (
    bert_source,
    from_hugging_face,
    read_bert_backbone,
    read_hugging_face,
    to_hugging_face,
)
from tests.keras_fixedhead import hugging_face
from tests.tiny_models import add_noise, new_bert
from tests.training.convert import tensorflow_berts
from tests.training.convert.texts import TEXTS, figures
from training.convert import conversion
from training.convert.__main__ import main
from training.convert.check import Agreement
from training.corpus.pairs import Pair


@pytest.fixture(scope="module")
def converted(sentence_transformer, tmp_path_factory):
    """A preset of `sentence_transformer`, and what its conversion prints."""
    folder = tmp_path_factory.mktemp("converted")
    output, texts = folder / "out", folder / "texts.txt"
    texts.write_text("\n\n".join(TEXTS), encoding="utf-8")
    flags = ["--source", sentence_transformer, "--output", output]
    flags += ["--texts", texts]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*map(str, flags)]) == 0
    return output, said.getvalue()


def test_from_hugging_face(converted):
    output, said = converted
    for line in (
        "comparing outputs on 5 texts with BERT's forward pass in NumPy",
        f"writing {output}",
        "token ids: 0 of 5 texts differ",
        "token ids in TensorFlow graphs: 0 of 5 texts differ",
        "special tokens in texts: 10 of 10 texts differ from the source's "
        "tokenizer, such as 'a [PAD] b'\nthey are text here: see --special",
        "left out, unused by this task: bert.pooler.dense",
        "its prompt 'query'",
        "5 texts, 34 tokens",
    ):
        assert line in said
    [difference] = figures(said, "embedding")
    assert difference < 1e-6
    embedder = FixedHeadTextEmbedder.from_preset(str(output))
    assert embedder.pooling_mode == "mean"
    assert embedder.preprocessor.sequence_length == 13
    assert embedder.preprocessor.prompts == {"query": "a "}
    record = json.loads((output / "run.json").read_text())
    assert record["settings"]["conversion"]["task"] == "text_embedder"
    found = record["figures"]["conversion"]["differences"]["embedding"]
    assert found == pytest.approx(difference, rel=0.1)


def test_token_ids_that_differ_are_said(run, sentence_transformer, monkeypatch):
    graph = FixedHeadTokenizer.tokenize_in_graph
    monkeypatch.setattr(
        FixedHeadTokenizer,
        "tokenize_in_graph",
        lambda self, text: graph(self, tf.strings.regex_replace(text, "h", "")),
    )
    said = run(sentence_transformer)
    assert "token ids: 0 of 5 texts differ" in said
    assert (
        "token ids in TensorFlow graphs: 3 of 5 texts differ from the "
        "source's tokenizer, such as 'Attention heads!'"
    ) in said


def test_growth(tmp_path, run, sentence_transformer):
    folder = shutil.copytree(sentence_transformer, tmp_path / "theirs")
    settings = {"truncation_side": "left"}
    hugging_face.change_file(folder / "tokenizer_config.json", settings)
    said = run(
        folder,
        *"--truncation_side right".split(),
        *"--num_heads 4 --head_size 13 --max_sequence_length 31".split(),
        *"--sequence_length 29 --query_prompt b --document_prompt c".split(),
        *"--drop_layers 1 --special_tokens_in_strings True".split(),
    )
    assert len(figures(said, "embedding")) == 4
    assert max(figures(said, "embedding")) < 1e-6
    similarity = float(re.search(r"cosine similarity of (\S+)", said)[1])
    assert -1 < similarity < 0.99
    assert "special tokens in texts: 0 of 10" in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    backbone = embedder.backbone
    assert backbone.num_layers == 1
    assert (backbone.num_heads, backbone.head_size) == (4, 13)
    assert backbone.max_sequence_length == 31
    assert embedder.preprocessor.sequence_length == 29
    assert embedder.preprocessor.prompts == {"query": "b", "document": "c"}
    assert list(embedder.preprocessor.tokenizer(["a [SEP] b"])[0]) == [
        14,
        3,
        15,
    ]


def test_an_own_preset_grows(tmp_path, run, converted):
    first, _ = converted
    said = run(first, "--pooling", "cls", status=1)
    assert "states its own settings. Remove these flags: pooling" in said
    said = run(first, "--task", "masked_lm", status=1)
    assert "of FixedHeadTextEmbedder" in said

    said = run(first, "--head_size", "7")

    assert "converted: " not in said
    before, after = (
        FixedHeadTextEmbedder.from_preset(str(folder))
        for folder in (first, tmp_path / "out")
    )
    assert after.backbone.head_size == 7
    inputs = before.preprocessor(TEXTS)
    np.testing.assert_allclose(after(inputs), before(inputs), atol=1e-5)


def test_masked_lm_and_back(tmp_path, run, sentence_transformer):
    said = run(
        sentence_transformer, "--task", "masked_lm", "--to", "hugging_face"
    )
    assert max(figures(said, "masked_lm")) < 1e-5
    assert max(figures(said, "next_sentence")) < 1e-5
    (tmp_path / "out").rename(tmp_path / "back")
    source = read_hugging_face(tmp_path / "back")
    assert source.build("masked_lm").next_sentence


def test_a_matrix_after_pooling(tmp_path, run, sentence_transformer):
    plain = from_hugging_face(sentence_transformer)
    embedder = FixedHeadTextEmbedder(
        plain.backbone, plain.preprocessor, "mean", projection_dim=7
    )
    to_hugging_face(embedder, tmp_path / "theirs")
    said = run(tmp_path / "theirs")
    assert max(figures(said, "embedding")) < 1e-6


def test_a_folder_that_is_there_stays(tmp_path, capsys):
    assert main(["--source", "theirs", "--output", str(tmp_path)]) == 1
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_docstrings_are_texts_where_none_are_given(
    tmp_path, capsys, converted, monkeypatch
):
    def read(folders):
        [folder] = folders
        assert folder.endswith("keras")
        return [Pair(str(i), "", f"a {i}") for i in range(15)], {}

    monkeypatch.setattr(conversion, "read_docstrings", read)
    flags = ["--source", str(converted[0]), "--num_texts", "7"]
    assert main([*flags, "--output", str(tmp_path / "out")]) == 0
    # Every third, so that they come from everywhere.
    assert "comparing token ids of 5 texts" in capsys.readouterr().err


def test_what_is_not_equal_is_not_written(
    run, sentence_transformer, monkeypatch
):
    assign = bert_source.BertSource._assign

    def wrong(self, weights):
        assign(self, weights)
        weights["bert/encoder/layer_1/output/dense/bias"].assign_add(
            1e-4 * np.arange(15)
        )

    monkeypatch.setattr(bert_source.BertSource, "_assign", wrong)
    said = run(sentence_transformer, status=1)
    assert "conversion is not exact: sequence_output is" in said
    assert "Nothing was written" in said


def test_what_grows_unequal_is_not_written(run, converted, monkeypatch):
    grow = conversion.growth.grow_heads

    def wrong(model, num_heads, seed):
        grown = grow(model, num_heads, seed)
        block = grown.backbone.transformer_layers[0]
        block.attention.query.bias.assign_add(np.full(20, 1e-3))
        return grown

    monkeypatch.setattr(conversion.growth, "grow_heads", wrong)
    said = run(converted[0], "--num_heads", "4", status=1)
    assert "num_heads 4 does not keep the outputs" in said


def test_not_a_number_is_not_equal():
    inputs = {"padding_mask": np.ones((1, 2))}
    agreement = Agreement("theirs")
    for x in (1.0, np.nan, 1.0):
        agreement.add(
            inputs, {"x": np.ones((1, 2, 3))}, {"x": np.full((1, 2, 3), x)}
        )
    with pytest.raises(ValueError, match="x is nan"):
        agreement.require("This")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_texts", "0"], "`num_texts` must be a positive"),
        (["--sequence_length", "20"], "from 3 to 19.* Received: 20"),
        (["--head_size", "4"], "`head_size`"),
        (["--task", "backbone", "--query_prompt", "a"], "Prompts need --task"),
        (["--task", "backbone", "--sequence_length", "7"], "another --task"),
    ],
    ids=lambda x: "" if isinstance(x, str) else x[0].strip("-"),
)
def test_errors_name_what_is_wrong(run, sentence_transformer, flags, message):
    said = run(sentence_transformer, *flags, status=1)
    assert re.search(message, said), said
    assert said.rpartition("training.convert: ")[1]


def keras_hub_preset(folder, tokenizer=True, **arguments):
    sizes = {"hidden_dim": 15, "max_sequence_length": 19}
    backbone = add_noise(new_bert(41, **sizes), 0.4, seed=3)
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
    assert "special tokens in texts: 2 of 10 texts differ" in said
    assert "such as 'a [UNK] b'\n" in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.pooling_mode == "cls"
    assert not embedder.normalize
    assert embedder.preprocessor.tokenizer.lowercase
    assert embedder.preprocessor.tokenizer.special_tokens_in_strings


def test_another_unknown_token_of_keras_hub_is_refused():
    bert = keras_hub.models.BertBackbone(41, 1, 1, 2, 3)
    tokenizer = keras_hub.models.BertTokenizer(
        hugging_face.VOCABULARY, lowercase=True, oov_token="[MASK]"
    )
    with pytest.raises(ValueError, match=r"has oov_token='\[MASK\]'"):
        read_bert_backbone(bert, tokenizer)


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


def test_from_an_original(tmp_path, run, original):
    said = run(original, "--pooling", "cls", status=1)
    assert "does not state its `lowercase`: pass it" in said
    prefix = original / "bert_model.ckpt"
    said = run(prefix, "--lowercase", "True", "--task", "backbone")
    assert max(figures(said, "pooled_output")) < 1e-5
    assert FixedHeadBackbone.from_preset(str(tmp_path / "out")).pooler
    tokenizer = FixedHeadTokenizer.from_preset(str(tmp_path / "out"))
    assert tokenizer.get_vocabulary() == tensorflow_berts.VOCABULARY


def test_sources_that_are_none(tmp_path, run, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("huggingface_hub.constants"),
        "HF_HUB_OFFLINE",
        True,
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.bin").touch()
    keras_hub.models.GPT2Backbone(11, 1, 1, 2, 3).save_to_preset(
        str(tmp_path / "gpt")
    )
    for source, message in (
        (tmp_path / "nowhere", "no folder, no checkpoint, no repository of"),
        ("somebody/some-bert", "call huggingface_hub.snapshot_download('some"),
        ("modelscope://a/b", "Download the folder"),
        (tmp_path / "empty", "must have a config.json"),
        (tmp_path / "model.bin", "neither a folder nor the prefix"),
        (tmp_path / "gpt", "is a preset of GPT2Backbone"),
    ):
        assert message in run(source, status=1)
