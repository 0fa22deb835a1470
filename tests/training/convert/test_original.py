"""BERTs of google-research/bert, as they were.

Shape letters: B batch, T sequence length, D embedding size.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from tests.training.convert.original_bert import (
    CONFIG,
    VOCABULARY,
    assert_same,
    make_inputs,
    original_tensors,
    write_original,
)
from training.convert.model_garden_checkpoint import (
    read_model_garden_checkpoint,
)
from training.convert.original import read_original
from training.convert.reference import encode, predict

QUERY = "bert/encoder/layer_1/attention/self/query/kernel"
ONE = {"x": np.ones(1, "float32")}


def test_an_original_keeps_each_tensor_and_its_sizes(original):
    source = read_original(original, lowercase=True)
    expected = original_tensors()
    weights = expected.pop("cls/seq_relationship/output_weights")
    expected["cls/seq_relationship/kernel"] = weights.T
    expected["cls/seq_relationship/bias"] = expected.pop(
        "cls/seq_relationship/output_bias"
    )
    assert source.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(source.tensors[name], tensor)
    assert source.spell("cls/seq_relationship/kernel") == (
        "cls/seq_relationship/output_weights"
    )
    assert source.config == {
        "vocabulary_size": 29,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 15,
        "intermediate_dim": 19,
        "max_sequence_length": 13,
        "num_segments": 2,
        "head_size": 5,
        "dropout": 0.1,
        "activation": "gelu_approximate",
        "layer_norm_epsilon": 1e-12,
    }
    assert source.vocabulary == VOCABULARY
    assert source.lowercase is True


def test_an_original_computes_what_official_does(original, official):
    source = read_original(original)
    assert_same(encode(source, make_inputs()), official)
    assert_same(source.build("backbone")(make_inputs()), official)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_other_activations_are_the_reference_s(original, activation):
    source = read_original(original)
    source = dataclasses.replace(
        source, config={**source.config, "activation": activation}
    )
    inputs = make_inputs()
    assert_same(source.build("backbone")(inputs), encode(source, inputs))


def test_an_original_predicts_tokens_and_sentences(original):
    source = read_original(original, lowercase=False)
    inputs = make_inputs()
    positions = np.array([[1, 3], [5, 0], [1, 1]], "int32")
    masked_lm = source.build("masked_lm")
    found = masked_lm({**inputs, "mask_positions": positions})
    expected = predict(source, encode(source, inputs))
    np.testing.assert_allclose(
        found["masked_lm"],
        np.take_along_axis(expected["masked_lm"], positions[..., None], axis=1),
        atol=3e-5,
    )
    np.testing.assert_allclose(
        found["next_sentence"], expected["next_sentence"], atol=1e-5
    )


def test_an_original_is_found_by_its_prefix_or_alone(original, tmp_path):
    tensors = original_tensors()
    folder = write_original(tmp_path / "a", tensors, name="model.ckpt-31")
    for path in (folder, folder / "model.ckpt-31"):
        source = read_original(path)
        np.testing.assert_array_equal(source.tensors[QUERY], tensors[QUERY])
        assert source.origin == str(folder / "model.ckpt-31")
    assert read_original(original / "bert_model.ckpt").vocabulary == VOCABULARY


def test_an_original_without_heads_is_an_encoder(tmp_path):
    tensors = {
        name: tensor
        for name, tensor in original_tensors().items()
        if not name.startswith("cls")
    }
    source = read_original(write_original(tmp_path / "a", tensors))
    assert_same(
        source.build("backbone")(make_inputs()), encode(source, make_inputs())
    )
    with pytest.raises(ValueError, match="cls/predictions/output_bias"):
        dataclasses.replace(source, lowercase=True).build("masked_lm")


@pytest.mark.parametrize(
    ("changes", "task", "message"),
    [
        (
            {"output_weights": np.ones((2, 15), "float32")},
            "backbone",
            "no place for: output_weights",
        ),
        (
            {"bert/encoder/layer_1/output/LayerNorm/gamma": None},
            "backbone",
            "lacks bert/encoder/layer_1/output/LayerNorm/gamma$",
        ),
        (
            {"cls/seq_relationship/output_bias": None},
            "masked_lm",
            "lacks cls/seq_relationship/output_bias$",
        ),
    ],
    ids=["other", "missing", "missing_head"],
)
def test_wrong_tensors_have_their_names(tmp_path, changes, task, message):
    tensors = {
        name: tensor
        for name, tensor in {**original_tensors(), **changes}.items()
        if tensor is not None
    }
    folder = write_original(tmp_path / "a", tensors)
    with pytest.raises(ValueError, match=message):
        read_original(folder, lowercase=True).build(task)


def test_an_original_asks_for_lowercase(original):
    with pytest.raises(ValueError, match="`lowercase`: pass it"):
        read_original(original).build("masked_lm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding_size": 7}, "embedding_size=7, hidden_size=15"),
        ({"hidden_act": "tanh"}, "gelu, relu. Received: 'tanh'"),
        ({"hidden_act": ["relu"]}, r"gelu, relu. Received: \['relu'\]"),
        ({"hidden_dropout_prob": "0"}, "`hidden_dropout_prob`.*'0'"),
        ({"hidden_size": "15"}, "`hidden_size`.*Received: '15'"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers`.*Received: 0"),
        ({"num_attention_heads": 7}, "multiple.*num_attention_heads=7"),
        ({"type_vocab_size": None}, "`type_vocab_size`.*Received: None"),
    ],
    ids=lambda value: next(iter(value)),
)
def test_wrong_sizes_are_errors(original, tmp_path, change, message):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / "bert_config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(ValueError, match=message):
        read_original(folder)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("bert_config.json", b"{", ValueError, "is not JSON"),
        ("bert_config.json", b"[]", ValueError, "a JSON object.*: list"),
        ("bert_config.json", b"{}", ValueError, "lacks vocab_size, num_hid"),
        ("bert_config.json", None, FileNotFoundError, "bert_config.json"),
        ("vocab.txt", b"[PAD]\n\xff\n", ValueError, "vocab.txt is not UTF-8"),
        ("vocab.txt", None, FileNotFoundError, "vocab.txt"),
        ("bert_model.ckpt.index", None, FileNotFoundError, r"no \*.index"),
        (
            "bert_model.ckpt.data-00000-of-00001",
            None,
            FileNotFoundError,
            "no bert_model.ckpt.data-",
        ),
    ],
)
def test_wrong_and_missing_files_are_errors(
    original, tmp_path, name, content, error, message
):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_original(folder)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("how", ["cut", "changed"])
@pytest.mark.parametrize(
    ("reader", "files"),
    [
        (read_original, "original"),
        (read_model_garden_checkpoint, "official_checkpoint"),
    ],
    ids=["original", "model_garden"],
)
def test_damaged_files_are_errors(
    request, tmp_path, reader, files, how, ending
):
    folder = shutil.copytree(request.getfixturevalue(files), tmp_path / "a")
    [path] = folder.glob(f"*.{ending}")
    content = path.read_bytes()
    # Not in what the optimizer left, which nobody reads.
    start = len(content) // 10
    if how == "cut":
        path.write_bytes(content[:start])
    else:
        flipped = bytes(255 - byte for byte in content[start : start + 97])
        path.write_bytes(content[:start] + flipped + content[start + 97 :])
    with pytest.raises(ValueError, match=r"damaged|cannot be restored"):
        reader(folder)


def test_several_checkpoints_are_an_error(tmp_path):
    for name in ("model.ckpt-2", "model.ckpt-31"):
        write_original(tmp_path / "a", ONE, name=name)
    with pytest.raises(ValueError, match="model.ckpt-2, model.ckpt-31"):
        read_original(tmp_path / "a")


def test_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        read_original(tmp_path / "bert_model.ckpt")


def test_a_vocabulary_that_is_given_replaces_the_file(original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "a")
    (folder / "vocab.txt").unlink()
    assert read_original(folder, vocabulary=VOCABULARY).lowercase is None


def test_the_other_tensorflow_is_an_error(original, official_checkpoint):
    with pytest.raises(ValueError, match="TensorFlow 2.*read_model_garden"):
        read_original(official_checkpoint)
    with pytest.raises(ValueError, match="TensorFlow 1.*read_original"):
        read_model_garden_checkpoint(original)
