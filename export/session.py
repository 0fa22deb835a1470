"""A SavedModel run by TensorFlow's C++ loader, as TF Serving runs it.

`SavedModelSession` calls the C API of the TensorFlow wheel (`c_api.h`,
`tf_tensor.h`, `tf_tstring.h`) by ctypes and never imports TensorFlow's Python,
so that no Python object can help a model that fails in the model server.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import Message

from export import messages

DEFAULT_SIGNATURE = "serving_default"
_SERVE_TAG = b"serve"

_Size = ctypes.c_size_t
_TSTRING_BYTES = 24  # sizeof(TF_TString), ctstring_internal.h
# void absl::SetMinLogLevel(absl::LogSeverityAtLeast), of TensorFlow 2.20.
# TensorFlow's Python applies the environment variable to Abseil's log; without
# it the C API logs to stderr, and has no function to set the level.
_SET_LOG_LEVEL = (
    "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE"
)


class _Pointer(ctypes.c_void_p):
    """A pointer that ctypes leaves as it is. As a plain `c_void_p` a result
    becomes an int, and as an argument an int loses its upper half."""


class _Buffer(ctypes.Structure):
    _fields_ = [("data", _Pointer), ("length", _Size), ("free", _Pointer)]


class _Output(ctypes.Structure):
    _fields_ = [("operation", _Pointer), ("index", ctypes.c_int)]


# What ctypes must know of results; others are C's int, or nothing.
_RESULTS = {
    _Pointer: (
        *("TF_NewStatus", "TF_LoadLibrary", "TF_NewGraph", "TF_AllocateTensor"),
        *("TF_NewSessionOptions", "TF_LoadSessionFromSavedModel"),
        *("TF_GraphOperationByName", "TF_TensorData"),
        "TF_StringGetDataPointer",
    ),
    ctypes.POINTER(_Buffer): ("TF_GetAllOpList", "TF_NewBuffer"),
    ctypes.c_int64: ("TF_Dim",),
    _Size: ("TF_StringGetSize", "TF_TensorByteSize"),
    ctypes.c_char_p: ("TF_Message",),
}


class StatusError(Exception):
    """An error of the C++ runtime; its code is one of `error_codes.proto`."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.message = code, message

    def __str__(self):
        name = messages.error_codes_pb2.Code.Name(self.code)
        return f"{name}: {self.message}"


@functools.cache
def _library():
    """Loads the C API and the op libraries of tensorflow-text, once."""
    path = messages.package_folder("tensorflow") / "libtensorflow_cc.so.2"
    library = ctypes.CDLL(str(path))
    for result, names in _RESULTS.items():
        for name in names:
            getattr(library, name).restype = result
    if set_log_level := getattr(library, _SET_LOG_LEVEL, None):
        set_log_level(int(os.environ.get("TF_CPP_MIN_LOG_LEVEL", 0)))
    ops = messages.package_folder("tensorflow_text") / "python" / "ops"
    for path in sorted(ops.glob("*.so")):
        with _checked(library) as status:
            library.TF_LoadLibrary(str(path).encode(), status)
    return library


@functools.cache
def known_ops() -> dict[str, Message]:
    """Returns TensorFlow's ops and tensorflow-text's, `{name: OpDef}`."""
    library = _library()
    buffer = library.TF_GetAllOpList()
    content = ctypes.string_at(buffer.contents.data, buffer.contents.length)
    library.TF_DeleteBuffer(buffer)
    ops = messages.op_def_pb2.OpList.FromString(content).op
    return {op.name: op for op in ops}


@contextlib.contextmanager
def _checked(library):
    """Lends a `TF_Status`, and raises the error that it holds in the end."""
    status = library.TF_NewStatus()
    try:
        yield status
        if code := library.TF_GetCode(status):
            message = library.TF_Message(status)
            raise StatusError(code, message.decode(errors="replace"))
    finally:
        library.TF_DeleteStatus(status)


def _new_tensor(array):
    """Copies an array to a `TF_Tensor`, whose strings stay in the array."""
    library = _library()
    is_text = array.dtype.kind == "O"
    size = _TSTRING_BYTES * array.size if is_text else array.nbytes
    tensor = library.TF_AllocateTensor(
        messages.data_type(array),
        (ctypes.c_int64 * array.ndim)(*array.shape),
        array.ndim,
        _Size(size),
    )
    data = library.TF_TensorData(tensor)
    if is_text:
        ctypes.memset(data, 0, size)  # empty strings
        for index, item in enumerate(array.flat):
            string = _Pointer(data.value + _TSTRING_BYTES * index)
            library.TF_StringAssignView(string, item, _Size(len(item)))
    else:
        ctypes.memmove(data, array.tobytes(), size)
    return tensor


def _to_array(tensor):
    """Copies a `TF_Tensor` into a NumPy array."""
    library = _library()
    rank = library.TF_NumDims(tensor)
    shape = [library.TF_Dim(tensor, axis) for axis in range(rank)]
    dtype = messages.numpy_dtype(library.TF_TensorType(tensor))
    data = library.TF_TensorData(tensor)
    size = library.TF_TensorByteSize(tensor)
    if dtype.kind != "O":
        content = ctypes.string_at(data, size) if size else b""
        return np.frombuffer(content, dtype).reshape(shape)
    array = np.empty(size // _TSTRING_BYTES, dtype)
    for index in range(len(array)):
        item = _Pointer(data.value + _TSTRING_BYTES * index)
        array[index] = ctypes.string_at(
            library.TF_StringGetDataPointer(item),
            library.TF_StringGetSize(item),
        )
    return array.reshape(shape)


class SavedModelSession:
    """A SavedModel version folder, loaded for inference.

    `op_threads` is how many threads one operation may use, 0 for all cores;
    the first session of a process decides. Several threads may call `run`, but
    `close` only when none runs. `signatures` are `{name: SignatureDef}` without
    the initialization op.
    """

    def __init__(self, folder: str | pathlib.Path, op_threads: int = 0):
        library = self._library = _library()
        config = messages.config_pb2.ConfigProto(
            intra_op_parallelism_threads=op_threads
        ).SerializeToString()
        graph = library.TF_NewGraph()
        options = library.TF_NewSessionOptions()
        buffer = library.TF_NewBuffer()
        tags = (ctypes.c_char_p * 1)(_SERVE_TAG)
        try:
            with _checked(library) as status:
                size = _Size(len(config))
                library.TF_SetConfig(options, config, size, status)
                session = library.TF_LoadSessionFromSavedModel(
                    options,
                    None,
                    os.fsencode(folder),
                    tags,
                    len(tags),
                    graph,
                    buffer,
                    status,
                )
            self.meta_graph = messages.meta_graph_pb2.MetaGraphDef.FromString(
                ctypes.string_at(buffer.contents.data, buffer.contents.length)
            )
        except StatusError:
            library.TF_DeleteGraph(graph)
            raise
        finally:
            library.TF_DeleteBuffer(buffer)
            library.TF_DeleteSessionOptions(options)
        self._graph, self._session = graph, session
        self.signatures = dict(self.meta_graph.signature_def)
        self.signatures.pop("__saved_model_init_op", None)

    def _output(self, tensor_name):
        """Finds the graph output of a name such as `add:0`."""
        name, _, index = tensor_name.partition(":")
        find = self._library.TF_GraphOperationByName
        handle = find(self._graph, name.encode())
        if not handle:
            raise StatusError(
                messages.error_codes_pb2.NOT_FOUND,
                f"The graph has no operation {name!r}.",
            )
        return _Output(handle, int(index or 0))

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        signature: str = DEFAULT_SIGNATURE,
        outputs: Sequence[str] = (),
    ) -> dict[str, np.ndarray]:
        """Answers one request with the named outputs, by default all.

        Strings are arrays of dtype object that hold `bytes`. Raises a
        `KeyError` for an unknown name, a `ValueError` for a dtype that
        TensorFlow lacks, a `StatusError` if the runtime refuses the inputs.
        """
        definition, library = self.signatures[signature], self._library
        names = list(outputs or definition.outputs)
        feeds = [definition.inputs[name].name for name in inputs]
        fetches = [definition.outputs[name].name for name in names]
        sources = (_Output * len(feeds))(*map(self._output, feeds))
        targets = (_Output * len(fetches))(*map(self._output, fetches))
        results = (_Pointer * len(fetches))()
        tensors = (_Pointer * len(feeds))()
        try:
            for index, array in enumerate(inputs.values()):
                tensors[index] = _new_tensor(array)
            with _checked(library) as status:
                library.TF_SessionRun(
                    *(self._session, None),
                    *(sources, tensors, len(feeds)),
                    *(targets, results, len(fetches)),
                    *(None, 0, None, status),
                )
            return dict(zip(names, map(_to_array, results)))
        finally:
            for tensor in (*tensors, *results):
                if tensor:
                    library.TF_DeleteTensor(tensor)

    def close(self) -> None:
        """Frees the graph and the weights; the session ends here."""
        if self._session is None:
            return
        session, self._session = self._session, None
        with _checked(self._library) as status:
            self._library.TF_CloseSession(session, status)
            self._library.TF_DeleteSession(session, status)
        self._library.TF_DeleteGraph(self._graph)
