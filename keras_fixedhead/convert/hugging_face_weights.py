"""The names and files of Hugging Face's BERT weights, both ways.

From safetensors alone: a pickle may run any code when it is read.
"""

import re

import numpy as np
import safetensors
import safetensors.numpy

from keras_fixedhead.convert.bert_source import WORD_EMBEDDINGS
from keras_fixedhead.convert.json_files import read_field, read_json

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")

# Ours but for the last word, which says what a tensor is of its layer.
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_MASKED_LM_BIAS = "cls/predictions/output_bias"


def read_weights(folder):
    """Reads the tensors of a folder.

    Args:
        folder: `pathlib.Path`.

    Returns:
        A dictionary of float32 arrays (float64 where they are) and one of
        what the folder calls them, both by the names of `BertSource`; and a
        function from such a name to what the folder would call it.

    Raises:
        FileNotFoundError: There are no weights, or a shard is missing.
        ValueError: They are pickled or damaged, two tensors have one name,
            or the output embedding is another than the input's.
    """
    tensors, names = {}, {}
    for path in _weight_files(folder):
        for theirs, tensor in _read_safetensors(path).items():
            if _is_buffer(theirs, tensor, path):
                continue
            if tensor.dtype.kind in "biu":
                raise ValueError(
                    f"{theirs} of {path} holds {tensor.dtype}, where a BERT "
                    "has floating-point numbers. There is no equivalent here "
                    "of quantized weights"
                )
            name = _to_bert(theirs)
            if name in tensors:
                raise ValueError(
                    f"{path} holds {theirs} beside {names[name]}, which is "
                    "the same tensor"
                )
            if theirs.endswith("weight") and tensor.ndim == 2:
                if not name.startswith("bert/embeddings"):
                    tensor = tensor.T
            if tensor.dtype not in (np.float32, np.float64):
                tensor = tensor.astype("float32")
            tensors[name], names[name] = tensor, theirs
    _drop_tied(tensors, names, folder)
    spelled = {*names.values()}

    def spell(name):
        theirs = _from_bert(name)
        if not any(x.startswith("bert.") for x in spelled):
            theirs = theirs.removeprefix("bert.")
        if any(x.endswith("LayerNorm.gamma") for x in spelled):
            norm, _, kind = name.rpartition("/")
            if norm.endswith("LayerNorm"):
                theirs = f"{theirs.rpartition('.')[0]}.{kind}"
        return theirs

    return tensors, names, spell


def write_weights(path, weights, prefix):
    """Writes weights as a safetensors file.

    Args:
        path: `pathlib.Path` of the file.
        weights: dictionary of float arrays by the names of `BertSource`.
        prefix: str, what stands before the names of the encoder: `"bert."`
            in models with heads.

    Raises:
        OSError: The file cannot be written.
    """
    tensors = {}
    for name, tensor in weights.items():
        theirs = _from_bert(name)
        if theirs.startswith("bert."):
            theirs = prefix + theirs.removeprefix("bert.")
        if name.endswith("/kernel"):
            tensor = tensor.T
        tensors[theirs] = np.ascontiguousarray(tensor, "float32")
    try:
        # `transformers` refuses a file that does not say so.
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def _weight_files(folder):
    if (folder / _ONE_FILE).exists():
        return [folder / _ONE_FILE]
    if (folder / _INDEX).exists():
        index = folder / _INDEX
        shards = read_field(read_json(index), "weight_map", dict, index, {})
        names = {
            read_field(shards, tensor, str, index, "") for tensor in shards
        }
        if not names:
            raise ValueError(f"{index} has no `weight_map`, which names files")
        paths = [folder / name for name in sorted(names)]
        for path in paths:
            if path.parent != folder or not path.exists():
                raise FileNotFoundError(
                    f"{folder / _INDEX} names the shard {path.name}, which "
                    "is not there"
                )
        return paths
    pickles = [path.name for kind in _PICKLES for path in folder.glob(kind)]
    if pickles:
        raise ValueError(
            f"{folder} has its weights pickled only ({', '.join(pickles)}); "
            "to read a pickle may run any code in it, so it is refused. Take "
            f"the model's {_ONE_FILE}, or write one with `transformers` "
            "where you trust the source"
        )
    raise FileNotFoundError(f"{folder} has no {_ONE_FILE}")


def _read_safetensors(path):
    try:
        return safetensors.numpy.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except AttributeError as error:
        # NumPy has no such numbers; the message names them.
        raise ValueError(
            f"{path} holds numbers that there is no equivalent of here: {error}"
        ) from error
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error}") from error


def _is_buffer(name, tensor, path):
    """Whether it is one of two constants that older versions save."""
    for ending, usual, what in (
        ("position_ids", np.arange(tensor.size), "0, 1, 2 and so on"),
        ("token_type_ids", np.zeros(tensor.size), "0 everywhere"),
    ):
        if name.endswith(f"embeddings.{ending}"):
            if np.array_equal(tensor.ravel(), usual):
                return True
            raise ValueError(
                f"{name} of {path} must be {what}, as in BERT: there is no "
                f"equivalent here of others. Received: {tensor.ravel()}"
            )
    return False


def _to_bert(name):
    if not name.startswith(("bert.", "cls.")):
        name = f"bert.{name}"
    if name == "bert.cls.predictions.bias":
        name = "cls.predictions.bias"
    if name == "cls.predictions.bias":
        return _MASKED_LM_BIAS
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).replace(".", "/")
    layer, _, kind = name.rpartition("/")
    if layer.rpartition("/")[2] in _TABLES:
        return layer if kind == "weight" else name
    if layer.endswith("LayerNorm"):
        kind = {"weight": "gamma", "bias": "beta"}.get(kind, kind)
    else:
        kind = {"weight": "kernel"}.get(kind, kind)
    return f"{layer}/{kind}"


def _from_bert(name):
    if name == _MASKED_LM_BIAS:
        return "cls.predictions.bias"
    if name.rpartition("/")[2] in _TABLES:
        name += "/weight"
    layer, _, kind = name.rpartition("/")
    kind = {"kernel": "weight", "gamma": "weight", "beta": "bias"}.get(
        kind, kind
    )
    layer = re.sub(r"/layer_(\d+)/", r"/layer/\1/", f"{layer}/")
    return f"{layer}{kind}".replace("/", ".")


def _drop_tied(tensors, names, folder):
    """Leaves out what is the same twice: the output's matrix and bias."""
    for name, twin in (
        ("cls/predictions/decoder/kernel", WORD_EMBEDDINGS),
        ("cls/predictions/decoder/bias", _MASKED_LM_BIAS),
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
                f"{names.get(twin, twin)}; there is no equivalent here of an "
                "output with weights of its own"
            )
