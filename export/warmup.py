"""Warm-up requests that TF Serving replays when it loads a version.

The file and its format: TensorFlow Serving, "SavedModel Warmup": a TFRecord
of `PredictionLog`, at most 1000 of them; one that fails fails the load.
"""

import struct

from google.protobuf import message

from export import messages

FILE = "assets.extra/tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)


def requests(cases):
    """Builds requests of the usual batch sizes from golden requests.

    Args:
        cases: `{signature: (inputs, outputs)}` as `golden.load` gives them.

    Returns:
        A list of `PredictRequest`, one per signature and batch size; the rows
        of a batch go through the golden ones in turn.
    """
    batches = []
    for signature, (inputs, _) in cases.items():
        for batch_size in BATCH_SIZES:
            request = messages.predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            for name, array in inputs.items():
                # From the last: the golden texts end with the longest.
                rows = [-1 - i % len(array) for i in range(batch_size)]
                request.inputs[name].CopyFrom(
                    messages.to_tensor_proto(array[rows])
                )
            batches.append(request)
    return batches


def write(folder, predict_requests):
    """Writes `PredictRequest`s as the warm-up file of a SavedModel."""
    import tensorflow as tf

    path = folder / FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in predict_requests:
            log = messages.prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(request)
            writer.write(log.SerializeToString())


def read(folder):
    """Reads the `PredictRequest`s of a SavedModel; none if it has no file.

    A record is its length (8 bytes, little-endian), 4 bytes of checksum, the
    data and 4 bytes of checksum (`record_writer.h`). The checksums are left
    to the model server.

    Raises:
        ValueError: if the file ends within a record, or holds another kind
            of record.
    """
    path = folder / FILE
    if not path.exists():
        return []
    content, found, start = path.read_bytes(), [], 0
    while start < len(content):
        header = content[start : start + 8]
        if len(header) < 8:
            raise ValueError(f"`folder`: {path} ends within a record.")
        (length,) = struct.unpack("<Q", header)
        data = content[start + 12 : start + 12 + length]
        start += 12 + length + 4
        if start > len(content):
            raise ValueError(f"`folder`: {path} ends within a record.")
        try:
            log = messages.prediction_log_pb2.PredictionLog.FromString(data)
        except message.DecodeError as error:
            raise ValueError(
                f"`folder`: {path} holds a record that is no PredictionLog."
            ) from error
        if log.WhichOneof("log_type") != "predict_log":
            raise ValueError(
                f"`folder`: {path} holds a {log.WhichOneof('log_type')} "
                "record; only predict_log is read here."
            )
        found.append(log.predict_log.request)
    return found
