"""Hugging Face's weights: their spellings, and what they must hold."""

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_fixedhead import convert
from tests.keras_fixedhead.hugging_face import (
    make_tensors,
    write_json,
    write_model,
)

pytestmark = pytest.mark.any_backend


def assert_holds(found, expected):
    assert found.keys() >= expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def read(folder, tensors):
    return convert.read_hugging_face(write_model(folder, tensors=tensors))


def old_norms(tensors):
    for name in list(tensors):
        if "LayerNorm" in name:
            new = name.replace("weight", "gamma").replace("bias", "beta")
            tensors[new] = tensors.pop(name)


def buffers(tensors):
    tensors["embeddings.position_ids"] = np.arange(19)[None]
    tensors["embeddings.token_type_ids"] = np.zeros((1, 19), "int64")


def prefix(tensors):
    for name in list(tensors):
        tensors[f"bert.{name}"] = tensors.pop(name)


def tied_twice(tensors):
    prefix(tensors)
    tensors.update(make_tensors(heads=True))
    words = tensors["bert.embeddings.word_embeddings.weight"]
    bias = tensors["cls.predictions.bias"]
    tensors["cls.predictions.decoder.weight"] = words.copy()
    tensors["cls.predictions.decoder.bias"] = bias.copy()


@pytest.mark.parametrize("spelling", [old_norms, buffers, prefix, tied_twice])
def test_other_spellings(tmp_path, spelling):
    tensors = make_tensors()
    expected = read(tmp_path, tensors).tensors
    spelling(tensors)
    assert_holds(read(tmp_path, tensors).tensors, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_as_it_is(tmp_path, dtype):
    tensors = {k: x.astype(dtype) for k, x in make_tensors().items()}
    backbone = read(tmp_path, tensors).build("backbone")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(backbone.pooled_dense.kernel),
        tensors["pooler.dense.weight"].astype("float32").T,
    )


def test_shards(tmp_path):
    tensors = make_tensors()
    expected = read(tmp_path, tensors).tensors
    (tmp_path / "model.safetensors").unlink()
    shards = {
        name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)
    }
    for shard in set(shards.values()):
        safetensors.numpy.save_file(
            {k: x for k, x in tensors.items() if shards[k] == shard},
            tmp_path / shard,
        )
    index = {"weight_map": shards}
    write_json(tmp_path / "model.safetensors.index.json", index)
    assert_holds(convert.read_hugging_face(tmp_path).tensors, expected)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-1.safetensors"):
        convert.read_hugging_face(tmp_path)


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


NORM = make_tensors()["embeddings.LayerNorm.bias"]
NOT_FINITE = np.where(np.arange(15) == 3, np.nan, NORM).astype("float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"encoder.layer.1.output.dense.bias": None},
            "lacks bert.encoder.layer.1.output.dense.bias",
        ),
        (
            {"encoder.layer.2.output.dense.bias": zeros(15)},
            "no place for: encoder.layer.2.output.dense.bias",
        ),
        (
            {"encoder.layer.0.intermediate.dense.weight": zeros(23, 14)},
            r"intermediate.dense.weight \(14, 23\) instead of \(15, 23\)",
        ),
        (
            {"embeddings.LayerNorm.bias": NOT_FINITE},
            "not finite: embeddings.LayerNorm.bias",
        ),
        ({"bert.embeddings.LayerNorm.bias": NORM}, "the same tensor"),
        (
            {"embeddings.LayerNorm.bias": NORM.astype(ml_dtypes.float8_e4m3fn)},
            "model.safetensors.*float8_e4m3fn",
        ),
    ],
    ids=lambda x: ", ".join(x) if isinstance(x, dict) else "",
)
def test_tensors_that_are_wrong(tmp_path, change, message):
    tensors = {**make_tensors(), **change}
    tensors = {k: x for k, x in tensors.items() if x is not None}
    with pytest.raises(ValueError, match=message):
        read(tmp_path, tensors).build("backbone")


def damaged(path):
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path):
    path.rename(path.with_name("pytorch_model.bin"))


def index(path):
    path.rename(path.with_suffix(".safetensors.index.json"))
    write_json(path.with_suffix(".safetensors.index.json"), {})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda path: path.unlink(), OSError, "no model.safetensors"),
        (damaged, ValueError, "model.safetensors is damaged"),
        (pickled, OSError, r"\*.bin, are refused"),
        (index, OSError, "shards in its `weight_map`"),
    ],
)
def test_files_that_are_wrong(tmp_path, change, error, message):
    change(write_model(tmp_path) / "model.safetensors")
    with pytest.raises(error, match=message):
        convert.read_hugging_face(tmp_path)
