"""Names and files of Hugging Face's BERT weights, both ways.

Only safetensors are read: reading a pickle may run any code.
"""

import pathlib
import re
from collections.abc import Callable, Mapping

import numpy as np
import safetensors
import safetensors.numpy

from keras_fixedhead.convert.bert_files import read_field, read_json
from keras_fixedhead.convert.bert_source import EMBEDDING_TABLES, MASKED_LM_BIAS

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# What `transformers` does not read either.
_CONSTANTS = ("embeddings.position_ids", "embeddings.token_type_ids")


def read_weights(
    folder: pathlib.Path,
) -> tuple[dict[str, np.ndarray], Callable[[str], str]]:
    """Reads `tensors` and `spell` of a `BertSource`."""
    tensors: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for path in _weight_files(folder):
        for theirs, tensor in _read_safetensors(path).items():
            if theirs.endswith(_CONSTANTS):
                continue
            if tensor.dtype.kind in "biu":
                raise ValueError(
                    f"{theirs} of {path} holds {tensor.dtype}, where a BERT "
                    "has floating-point numbers. Quantized weights have no "
                    "equivalent here"
                )
            name = _to_bert(theirs)
            if name in tensors:
                raise ValueError(
                    f"{path} holds {theirs} beside {names[name]}, which is "
                    "the same tensor"
                )
            if name.endswith("/kernel") and tensor.ndim == 2:
                tensor = tensor.T
            if tensor.dtype not in (np.float32, np.float64):
                tensor = tensor.astype("float32")
            tensors[name], names[name] = tensor, theirs
    _drop_tied(tensors, names, folder)
    return tensors, lambda name: names.get(name) or _from_bert(name)


def write_weights(
    path: pathlib.Path, weights: Mapping[str, np.ndarray], prefix: str
) -> None:
    """Writes weights by `BertSource`'s names, the encoder's with `prefix`."""
    tensors = {}
    for name, tensor in weights.items():
        theirs = _from_bert(name)
        if theirs.startswith("bert."):
            theirs = prefix + theirs.removeprefix("bert.")
        if name.endswith("/kernel"):
            tensor = tensor.T
        tensors[theirs] = np.ascontiguousarray(tensor, "float32")
    try:
        # `transformers` refuses a file without this metadata.
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def _weight_files(folder):
    path, index = folder / _ONE_FILE, folder / _INDEX
    if path.exists():
        return [path]
    if index.exists():
        shards = read_field(read_json(index), "weight_map", dict, index, {})
        names = {read_field(shards, name, str, index, "") for name in shards}
        paths = [folder / name for name in sorted(names)]
        missing = [x for x in paths if x.parent != folder or not x.exists()]
        if missing or not paths:
            raise FileNotFoundError(
                f"{index} names shards in its `weight_map` which are not "
                f"there, or none: {', '.join(x.name for x in missing)}"
            )
        return paths
    raise FileNotFoundError(
        f"{folder} has no {_ONE_FILE}. Pickled weights, such as *.bin, are "
        "refused, as they may run any code: write a "
        f"{_ONE_FILE} with `transformers` if you trust the source"
    )


def _read_safetensors(path):
    try:
        return safetensors.numpy.load_file(path)
    # An AttributeError names a dtype that NumPy lacks.
    except (safetensors.SafetensorError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or holds numbers that have no equivalent "
            f"here: {error}"
        ) from error


def _to_bert(name):
    if not name.startswith(("bert.", "cls.")):
        name = f"bert.{name}"
    if name == "cls.predictions.bias":
        return MASKED_LM_BIAS
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).replace(".", "/")
    if name.removesuffix("/weight") in EMBEDDING_TABLES:
        return name.removesuffix("/weight")
    name = re.sub("LayerNorm/weight$", "LayerNorm/gamma", name)
    name = re.sub("LayerNorm/bias$", "LayerNorm/beta", name)
    return re.sub("/weight$", "/kernel", name)


def _from_bert(name):
    if name == MASKED_LM_BIAS:
        return "cls.predictions.bias"
    if name in EMBEDDING_TABLES:
        name += "/weight"
    name = re.sub("/(kernel|gamma)$", "/weight", name)
    name = re.sub("/beta$", "/bias", name)
    return re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).replace("/", ".")


def _drop_tied(tensors, names, folder):
    """Drops the output's matrix and bias if they repeat other tensors."""
    for name, twin in (
        ("cls/predictions/decoder/kernel", EMBEDDING_TABLES[0]),
        ("cls/predictions/decoder/bias", MASKED_LM_BIAS),
    ):
        if name not in tensors:
            continue
        tensor = tensors[name].T
        if twin not in tensors and name.endswith("bias"):
            tensors[twin], names[twin] = tensor, names[name]
        if twin in tensors and np.array_equal(tensor, tensors[twin]):
            del tensors[name], names[name]
        else:
            raise ValueError(
                f"{names[name]} of {folder} is not "
                f"{names.get(twin, twin)}; an output layer with weights of "
                "its own has no equivalent here"
            )
