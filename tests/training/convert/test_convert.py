"""The verb: from any source to a preset, and its errors."""

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
    progress,
)
from keras_fixedhead.convert import bert_source
from tests.keras_fixedhead import hugging_face
from tests.training.convert import original_bert
from training.convert import conversion
from training.convert.__main__ import main
from training.convert.check import Agreement

ROOT = pathlib.Path(__file__).parents[3]
TEXTS = [
    "Attention heads!",
    "a cab, a bad cafe",
    "zzz",
    "b c d e f g h i j k l m n o p q r s t u v w x y z",
    "中 head",
]

# KerasHub's TextEmbedder has a compile() of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sentence_transformer(tmp_path_factory):
    folder = hugging_face.write_model(
        tmp_path_factory.mktemp("theirs"),
        tensors=hugging_face.make_tensors(heads=True),
    )
    hugging_face.write_modules(
        folder,
        {"pooling_mode": "mean"},
        sentence_bert_config={"max_seq_length": 13},
        config_sentence_transformers={
            "prompts": {"query": "a "},
            "default_prompt_name": "query",
        },
    )
    return folder


@pytest.fixture
def run(tmp_path, texts, capsys):
    """Runs the verb, into `tmp_path / "out"`; what it says."""

    def run(source, *flags, status=0):
        arguments = ["--source", str(source), "--output", str(tmp_path / "out")]
        found = main([*arguments, "--texts", str(texts), *flags])
        said = capsys.readouterr().err
        assert found == status, said
        if status:
            assert not list(tmp_path.glob("*out*"))
        return said

    run.output = tmp_path / "out"
    return run


def figures(said, name):
    """The largest difference that is printed, of each comparison."""
    return [float(x) for x in re.findall(rf"{name} (\S+) \(of", said)]


def test_from_hugging_face(tmp_path, run, sentence_transformer):
    said = run(sentence_transformer)

    assert said.startswith("loading Keras and TensorFlow\n")
    stages = (
        "reading the texts to compare on",
        f"reading {sentence_transformer}",
        "comparing token ids of 5 texts",
        "comparing outputs on 5 texts with BERT's forward pass in NumPy",
        f"writing {tmp_path / 'out'}",
        f"wrote {tmp_path / 'out'}",
    )
    places = [said.index(f"\n{stage}") for stage in stages]
    assert places == sorted(places)
    assert "token ids: 0 of 5 texts differ" in said
    assert "token ids in TensorFlow graphs: 0 of 5 texts differ" in said
    assert "special tokens in texts are text here: 10 of 10 texts" in said
    assert "such as 'a [PAD] b'. See --special_tokens_in_strings" in said
    assert "left out, unused by this task: bert.pooler.dense" in said
    assert "its prompt 'query'" in said
    assert "5 texts, 34 tokens" in said
    [difference] = figures(said, "embedding")
    assert difference < 1e-6
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.pooling_mode == "mean"
    assert embedder.preprocessor.sequence_length == 13
    assert embedder.preprocessor.prompts == {"query": "a "}
    inputs = embedder.preprocessor(TEXTS)
    theirs = hugging_face.run(
        hugging_face.make_tensors(heads=True),
        {name: np.array(x) for name, x in inputs.items()},
    )["sequence_output"]
    real = np.array(inputs["padding_mask"]).astype(bool)
    np.testing.assert_allclose(
        np.array(embedder.backbone(inputs)["sequence_output"])[real],
        theirs[real],
        atol=1e-5,
    )
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["settings"]["conversion"]["task"] == "text_embedder"
    assert record["figures"]["conversion"]["differences"][
        "embedding"
    ] == pytest.approx(difference, rel=0.1)


def test_special_tokens_in_texts_may_be_ids(
    tmp_path, run, sentence_transformer
):
    said = run(sentence_transformer, "--special_tokens_in_strings", "True")
    assert "special tokens in texts" not in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    tokenizer = embedder.preprocessor.tokenizer
    assert tokenizer.special_tokens_in_strings
    assert list(tokenizer(["a [SEP] b"])[0]) == [14, 3, 15]


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
    said = run_again(run, sentence_transformer, "--lowercase", "False")
    assert "token ids: 1 of 5 texts differ" in said


def run_again(run, source, *flags):
    shutil.rmtree(run.output)
    return run(source, *flags)


def test_left_truncation_is_given_up_by_a_flag(tmp_path, run):
    folder = hugging_face.write_model(tmp_path / "theirs")
    hugging_face.write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "truncation_side": "left"},
    )
    said = run(folder, "--pooling", "cls", status=1)
    assert "truncates long texts on the left" in said
    run(folder, "--pooling", "cls", "--truncation_side", "right")


def test_long_comparisons_are_not_silent(
    run, sentence_transformer, monkeypatch
):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0)
    assert "\nComparing outputs: 100%  ETA 0:00:00\n" in run(
        sentence_transformer
    )


def test_growth(tmp_path, run, sentence_transformer):
    said = run(
        sentence_transformer,
        *"--num_heads 4 --head_size 13 --max_sequence_length 31".split(),
        *"--sequence_length 29 --query_prompt b --document_prompt c".split(),
    )
    assert len(figures(said, "embedding")) == 4
    assert max(figures(said, "embedding")) < 1e-6
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    backbone = embedder.backbone
    assert (backbone.num_heads, backbone.head_size) == (4, 13)
    assert backbone.max_sequence_length == 31
    assert embedder.preprocessor.sequence_length == 29
    assert embedder.preprocessor.prompts == {"query": "b", "document": "c"}


def test_dropped_layers_are_said(tmp_path, run, sentence_transformer):
    said = run(sentence_transformer, "--drop_layers", "1")
    similarity = float(re.search(r"cosine similarity of (\S+)", said)[1])
    assert -1 < similarity < 0.99
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.backbone.num_layers == 1


def test_an_own_preset_grows(tmp_path, run, sentence_transformer):
    run(sentence_transformer)
    (tmp_path / "out").rename(tmp_path / "first")
    before = FixedHeadTextEmbedder.from_preset(str(tmp_path / "first"))

    said = run(tmp_path / "first", "--head_size", "7")

    assert "converted" not in said
    after = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert after.backbone.head_size == 7
    np.testing.assert_allclose(
        after.encode_text(TEXTS, verbose=0),
        before.encode_text(TEXTS, verbose=0),
        atol=1e-5,
    )
    (tmp_path / "out").rename(tmp_path / "second")
    said = run(tmp_path / "first", "--pooling", "cls", status=1)
    assert "states its own settings. Remove these flags: pooling" in said
    said = run(tmp_path / "first", "--task", "masked_lm", status=1)
    assert "a preset of FixedHeadTextEmbedder" in said


def test_masked_lm_and_back(tmp_path, run, sentence_transformer):
    said = run(
        sentence_transformer, "--task", "masked_lm", "--to", "hugging_face"
    )
    assert max(figures(said, "masked_lm")) < 1e-5
    assert max(figures(said, "next_sentence")) < 1e-5
    (tmp_path / "out").rename(tmp_path / "back")
    run(tmp_path / "back", "--task", "masked_lm")
    assert FixedHeadMaskedLM.from_preset(str(tmp_path / "out")).next_sentence


def test_a_folder_that_is_there_stays(tmp_path, capsys, sentence_transformer):
    output = tmp_path / "out"
    output.mkdir()
    flags = ["--source", str(sentence_transformer), "--output", str(output)]
    assert main(flags) == 1
    assert f"{output} exists" in capsys.readouterr().err
    assert not list(output.iterdir())


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
    keras_hub_preset(tmp_path / "theirs")
    said = run(tmp_path / "theirs", "--pooling", "cls", "--normalize", "False")
    assert max(figures(said, "sequence_output")) < 1e-5
    assert "token ids: 0 of 5 texts differ" in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.pooling_mode == "cls"
    assert not embedder.normalize
    assert embedder.preprocessor.tokenizer.lowercase


def test_the_tokenizer_of_keras_hub_counts(tmp_path, run):
    theirs = tmp_path / "theirs"
    keras_hub_preset(theirs, special_tokens_in_strings=True)
    said = run(theirs, "--pooling", "cls")
    assert "token ids: 0 of 5 texts differ" in said
    # KerasHub's BERT leaves out [UNK].
    assert "special tokens in texts are ids here: 2 of 10 texts with" in said
    assert "such as 'a [UNK] b'\n" in said
    embedder = FixedHeadTextEmbedder.from_preset(str(tmp_path / "out"))
    assert embedder.preprocessor.tokenizer.special_tokens_in_strings
    shutil.rmtree(tmp_path / "out")
    keras_hub_preset(tmp_path / "other", oov_token="[MASK]")
    said = run(tmp_path / "other", "--pooling", "cls", status=1)
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


def test_a_backbone_keeps_its_tokenizer(tmp_path, run, sentence_transformer):
    run(sentence_transformer, "--task", "backbone")
    tokenizer = FixedHeadTokenizer.from_preset(str(tmp_path / "out"))
    assert tokenizer.get_vocabulary() == hugging_face.VOCABULARY
    assert FixedHeadBackbone.from_preset(str(tmp_path / "out")).pooler


def test_docstrings_are_texts_where_none_are_given(
    tmp_path, capsys, sentence_transformer
):
    arguments = ["--source", str(sentence_transformer), "--num_texts", "7"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert "7 texts, 91 tokens" in capsys.readouterr().err


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


def test_what_grows_unequal_is_not_written(
    run, sentence_transformer, monkeypatch
):
    grow = conversion.growth.grow_heads

    def wrong(model, num_heads, seed):
        grown = grow(model, num_heads, seed)
        block = grown.backbone.transformer_layers[0]
        block.attention.query.bias.assign_add(np.full(20, 1e-3))
        return grown

    monkeypatch.setattr(conversion.growth, "grow_heads", wrong)
    said = run(sentence_transformer, "--num_heads", "4", status=1)
    assert "num_heads 4 does not keep the outputs" in said


def test_a_failed_write_leaves_nothing(run, sentence_transformer, monkeypatch):
    def fail(self, folder):
        pathlib.Path(folder).mkdir()
        raise OSError("no space")

    monkeypatch.setattr(FixedHeadTextEmbedder, "save_to_preset", fail)
    assert "no space" in run(sentence_transformer, status=1)


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
        (["--num_texts", "0"], "`num_texts` must be positive"),
        (["--sequence_length", "20"], "at most 19.*--max_sequence_length"),
        (["--head_size", "4"], "`head_size`"),
        (["--num_heads", "3"], "`num_heads`"),
        (["--drop_layers", "2"], "`layers`"),
        (["--to", "hugging_face", "--head_size", "7"], "no place for this"),
        (["--task", "backbone", "--query_prompt", "a"], "neither prompts nor"),
        (["--task", "masked_lm", "--query_prompt", "a"], "Prompts need --task"),
    ],
    ids=lambda x: "" if isinstance(x, str) else x[0].strip("-"),
)
def test_errors_name_what_is_wrong(run, sentence_transformer, flags, message):
    said = run(sentence_transformer, *flags, status=1)
    assert re.search(message, said), said
    assert said.rpartition("training.convert: ")[1]


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


def test_help_is_quick_and_says_what_sources_there_are():
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "training.convert", "-h"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Hugging Face" in process.stdout
    assert "| tensorflow\n" not in process.stderr
