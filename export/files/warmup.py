"""Warm-up requests that TF Serving replays when it loads a version.

The file and its format: TensorFlow Serving, "SavedModel Warmup": a TFRecord
of `PredictionLog`, at most 1000 of them; one that fails fails the load.
"""

import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from google.protobuf.message import Message

from export import messages

FILE = "assets.extra/tf_serving_warmup_requests"
# By length, which of all texts is the longest of a batch.
_QUANTILES = (0.1, 0.5, 1.0)
# Ids per batch of more than one text: a large model would load for minutes.
_MOST_IDS = 1024
MOST_REQUESTS = 1000  # that the model server reads
_CONFIG = pathlib.Path(__file__).parents[1] / "deploy" / "config"
BATCHING_PARAMETERS = _CONFIG / "batching_parameters.txt"
_BATCH_SIZE = re.compile(r"^\s*allowed_batch_sizes\s*:\s*(\d+)", re.MULTILINE)


def read_texts(path: str | pathlib.Path) -> list[str]:
    """Reads a file of one text per line; ignores empty lines."""
    content = pathlib.Path(path).read_text(encoding="utf-8")
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise ValueError(
            f"`warmup_texts` {path} is empty; write a text on each line."
        )
    return texts


def batches(
    texts: Sequence[str],
    batch_sizes: Iterable[int],
    tokenize: Callable[[list[str]], Mapping[str, np.ndarray]],
) -> list[tuple[tuple[str, ...], Mapping[str, np.ndarray]]]:
    """Returns batches of every size, of short, middling and long texts, each
    with what `tokenize` returns for it: int32 `[B, T]` by input."""
    ordered = sorted(texts, key=len)
    found = {}
    for size in batch_sizes:
        for quantile in _QUANTILES:
            end = math.ceil(quantile * len(ordered))
            batch = tuple(ordered[end - 1 - i % end] for i in range(size))
            tokenized = tokenize(list(batch))
            inputs = {name: np.asarray(x) for name, x in tokenized.items()}
            if size == 1 or inputs["token_ids"].size <= _MOST_IDS:
                found[batch] = inputs
    return list(found.items())


def request(signature: str, inputs: Mapping[str, np.ndarray]) -> Message:
    """Builds a `PredictRequest`."""
    built = messages.predict_pb2.PredictRequest()
    built.model_spec.signature_name = signature
    for name, array in inputs.items():
        built.inputs[name].CopyFrom(messages.to_tensor_proto(array))
    return built


def write(folder: pathlib.Path, requests: Iterable[Message]) -> None:
    """Writes `PredictRequest`s as the warm-up file of a SavedModel."""
    import tensorflow as tf

    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests:
            log = messages.prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString())


def read(folder: pathlib.Path) -> list[Message]:
    """Reads the `PredictRequest`s of a SavedModel; none if it has no file.

    A record is its length (8 bytes, little-endian), 4 bytes of checksum, the
    data and 4 bytes of checksum (`record_writer.h`).
    """
    path = folder / FILE
    if not path.exists():
        return []
    content, found, start = path.read_bytes(), [], 0
    while start < len(content):
        length = int.from_bytes(content[start : start + 8], "little")
        data = content[start + 12 : start + 12 + length]
        start += 12 + length + 4
        log = messages.prediction_log_pb2.PredictionLog.FromString(data)
        found.append(log.predict_log.request)
    return found


def read_batch_sizes(path: str | pathlib.Path) -> list[int]:
    """Reads the batch sizes that a server runs."""
    found = _BATCH_SIZE.findall(pathlib.Path(path).read_text("utf-8"))
    if not found:
        raise ValueError(
            f"`batching_parameters_file` {path} has no `allowed_batch_sizes`, "
            "which the warm-up follows."
        )
    return [int(size) for size in found]
