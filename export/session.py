"""A SavedModel run by TensorFlow's C++ loader, as TF Serving runs it.

`SavedModelSession` calls the C API of the TensorFlow wheel (`c_api.h`,
`tf_tensor.h`, `tf_tstring.h`) by ctypes and never imports TensorFlow's Python:
what works here has no help from Python objects, as in the model server.
"""

import ctypes
import functools
import itertools
import os

import numpy as np

from export import messages

DEFAULT_SIGNATURE = "serving_default"
_SERVE_TAG = b"serve"
INIT_OP = "__saved_model_init_op"

_Pointer = ctypes.c_void_p
_DEALLOCATOR = ctypes.CFUNCTYPE(None, _Pointer, ctypes.c_size_t, _Pointer)
_TSTRING_BYTES = 24  # sizeof(TF_TString), ctstring_internal.h
# void absl::SetMinLogLevel(absl::LogSeverityAtLeast), of TensorFlow 2.20.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_SET_LOG_LEVEL = (
    "_ZN4absl12lts_2025012714SetMinLogLevelENS0_18LogSeverityAtLeastE"
)


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", _Pointer),
        ("length", ctypes.c_size_t),
        ("data_deallocator", _Pointer),
    ]


class _Output(ctypes.Structure):
    _fields_ = [("operation", _Pointer), ("index", ctypes.c_int)]


class StatusError(Exception):
    """An error of the C++ runtime: `code` (`error_codes.proto`), `message`."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self):
        name = messages.error_codes_pb2.Code.Name(self.code)
        return f"{name}: {self.message}"


@functools.cache
def _library():
    """Loads the C API and the op libraries of tensorflow-text, once."""
    path = messages.package_folder("tensorflow") / "libtensorflow_cc.so.2"
    library = ctypes.CDLL(str(path))
    integer, size, text = ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in (
        ("TF_NewStatus", _Pointer, []),
        ("TF_DeleteStatus", None, [_Pointer]),
        ("TF_GetCode", integer, [_Pointer]),
        ("TF_Message", text, [_Pointer]),
        ("TF_LoadLibrary", _Pointer, [text, _Pointer]),
        ("TF_GetAllOpList", ctypes.POINTER(_Buffer), []),
        ("TF_NewGraph", _Pointer, []),
        ("TF_DeleteGraph", None, [_Pointer]),
        ("TF_NewSessionOptions", _Pointer, []),
        ("TF_DeleteSessionOptions", None, [_Pointer]),
        ("TF_SetConfig", None, [_Pointer, text, size, _Pointer]),
        ("TF_NewBuffer", ctypes.POINTER(_Buffer), []),
        ("TF_DeleteBuffer", None, [ctypes.POINTER(_Buffer)]),
        (
            "TF_LoadSessionFromSavedModel",
            _Pointer,
            [
                *(_Pointer, _Pointer, text, ctypes.POINTER(text), integer),
                *(_Pointer, ctypes.POINTER(_Buffer), _Pointer),
            ],
        ),
        ("TF_CloseSession", None, [_Pointer, _Pointer]),
        ("TF_DeleteSession", None, [_Pointer, _Pointer]),
        ("TF_GraphOperationByName", _Pointer, [_Pointer, text]),
        (
            "TF_SessionRun",
            None,
            [
                *(_Pointer, _Pointer),
                *(ctypes.POINTER(_Output), ctypes.POINTER(_Pointer), integer),
                *(ctypes.POINTER(_Output), ctypes.POINTER(_Pointer), integer),
                *(_Pointer, integer, _Pointer, _Pointer),
            ],
        ),
        (
            "TF_NewTensor",
            _Pointer,
            [
                *(integer, ctypes.POINTER(ctypes.c_int64), integer),
                *(_Pointer, size, _DEALLOCATOR, _Pointer),
            ],
        ),
        ("TF_DeleteTensor", None, [_Pointer]),
        ("TF_TensorType", integer, [_Pointer]),
        ("TF_NumDims", integer, [_Pointer]),
        ("TF_Dim", ctypes.c_int64, [_Pointer, integer]),
        ("TF_TensorByteSize", size, [_Pointer]),
        ("TF_TensorData", _Pointer, [_Pointer]),
        ("TF_StringAssignView", None, [_Pointer, text, size]),
        ("TF_StringGetDataPointer", _Pointer, [_Pointer]),
        ("TF_StringGetSize", size, [_Pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Before its Python does, TensorFlow's C++ prints whatever it likes.
    if set_log_level := getattr(library, _SET_LOG_LEVEL, None):
        set_log_level(integer(int(os.environ.get(_LOG_LEVEL, 0))))
    ops = messages.package_folder("tensorflow_text") / "python" / "ops"
    with _Status(library) as status:
        for path in sorted(ops.glob("*.so")):
            library.TF_LoadLibrary(str(path).encode(), status.handle)
            status.check()
    return library


@functools.cache
def known_ops():
    """Returns TensorFlow's ops and tensorflow-text's, `{name: OpDef}`."""
    library = _library()
    buffer = library.TF_GetAllOpList()
    content = ctypes.string_at(buffer.contents.data, buffer.contents.length)
    library.TF_DeleteBuffer(buffer)
    ops = messages.op_def_pb2.OpList.FromString(content).op
    return {op.name: op for op in ops}


class _Status:
    """A `TF_Status` as a context; `check` raises what it holds."""

    def __init__(self, library):
        self._library = library

    def __enter__(self):
        self.handle = self._library.TF_NewStatus()
        return self

    def __exit__(self, *_):
        self._library.TF_DeleteStatus(self.handle)

    def check(self):
        code = self._library.TF_GetCode(self.handle)
        if code:
            message = self._library.TF_Message(self.handle)
            raise StatusError(code, message.decode(errors="replace"))


# The memory of tensors that C++ still holds: {key: owner of the memory}.
_held = {}
_keys = itertools.count(1)


@_DEALLOCATOR
def _release(data, length, key):
    _held.pop(key, None)


def _new_tensor(array):
    """Wraps an array as a `TF_Tensor`; its memory lives until C++ lets go."""
    library = _library()
    if array.dtype.kind == "O":
        items = array.ravel().tolist()
        memory = ctypes.create_string_buffer(_TSTRING_BYTES * len(items))
        for index, item in enumerate(items):
            library.TF_StringAssignView(
                ctypes.addressof(memory) + _TSTRING_BYTES * index,
                item,
                len(item),
            )
        owner, length = (memory, items), len(memory)
        address = ctypes.addressof(memory)
    else:
        owner = np.ascontiguousarray(array)
        address, length = owner.ctypes.data, owner.nbytes
    key = next(_keys)
    _held[key] = owner
    return library.TF_NewTensor(
        messages.data_type(array),
        (ctypes.c_int64 * array.ndim)(*array.shape),
        array.ndim,
        address,
        length,
        _release,
        key,
    )


def _to_array(tensor):
    """Copies a `TF_Tensor` into a NumPy array."""
    library = _library()
    shape = [
        library.TF_Dim(tensor, axis)
        for axis in range(library.TF_NumDims(tensor))
    ]
    dtype = messages.numpy_dtype(library.TF_TensorType(tensor))
    data = library.TF_TensorData(tensor)
    size = library.TF_TensorByteSize(tensor)
    if dtype.kind != "O":
        content = ctypes.string_at(data, size) if size else b""
        return np.frombuffer(content, dtype).reshape(shape)
    array = np.empty(size // _TSTRING_BYTES, dtype)
    for index in range(len(array)):
        item = data + _TSTRING_BYTES * index
        array[index] = ctypes.string_at(
            library.TF_StringGetDataPointer(item),
            library.TF_StringGetSize(item),
        )
    return array.reshape(shape)


class SavedModelSession:
    """A SavedModel version folder, loaded for inference.

    Args:
        folder: path of the folder that holds `saved_model.pb`.
        op_threads: int, the threads that one operation may use; all the
            machine's by default. TensorFlow takes what the first session of a
            process says.

    Attributes:
        meta_graph: the `MetaGraphDef` that the loader read.
        signatures: `{name: SignatureDef}`, without the initialisation op.

    Raises:
        StatusError: if the C++ loader refuses the folder.

    `run` may be called from several threads at once; `close` may not be
    called while a run is under way.
    """

    def __init__(self, folder, op_threads=0):
        library = self._library = _library()
        config = messages.config_pb2.ConfigProto(
            intra_op_parallelism_threads=op_threads
        ).SerializeToString()
        graph = library.TF_NewGraph()
        options = library.TF_NewSessionOptions()
        buffer = library.TF_NewBuffer()
        tags = (ctypes.c_char_p * 1)(_SERVE_TAG)
        try:
            with _Status(library) as status:
                library.TF_SetConfig(
                    options, config, len(config), status.handle
                )
                status.check()
                session = library.TF_LoadSessionFromSavedModel(
                    options,
                    None,
                    os.fsencode(folder),
                    tags,
                    len(tags),
                    graph,
                    buffer,
                    status.handle,
                )
                status.check()
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
        self.signatures = {
            name: signature
            for name, signature in self.meta_graph.signature_def.items()
            if name != INIT_OP
        }

    def _output(self, tensor_name):
        """Finds the graph output of a name such as `add:0`."""
        operation, _, index = tensor_name.partition(":")
        handle = self._library.TF_GraphOperationByName(
            self._graph, operation.encode()
        )
        if not handle:
            raise StatusError(
                messages.error_codes_pb2.NOT_FOUND,
                f"The graph has no operation {operation!r}.",
            )
        return _Output(handle, int(index or 0))

    def run(self, inputs, signature=DEFAULT_SIGNATURE, outputs=None):
        """Answers one request.

        Args:
            inputs: `{name: array}`, the names as in the signature; strings
                are arrays of dtype object that hold `bytes`.
            signature: name of the signature.
            outputs: names of the wanted outputs; all of them by default.

        Returns:
            `{name: array}`.

        Raises:
            KeyError: if the signature, an input or an output is unknown.
            ValueError: if an array has a dtype that TensorFlow has not.
            StatusError: if the runtime refuses the inputs.
        """
        definition = self.signatures[signature]
        names = list(outputs or definition.outputs)
        answers = self._run(
            {definition.inputs[n].name: array for n, array in inputs.items()},
            [definition.outputs[n].name for n in names],
        )
        return dict(zip(names, answers, strict=True))

    def read_variables(self):
        """Returns the variables that the graph reads, `{name: array}`.

        Raises:
            StatusError: if one cannot be read.
        """
        reads = {
            node.input[0]: f"{node.name}:0"
            for node in self.meta_graph.graph_def.node
            if node.op == "ReadVariableOp"
        }
        return dict(zip(reads, self._run({}, list(reads.values()))))

    def _run(self, feeds, fetches):
        """Runs the graph: `{tensor name: array}` to a list of arrays."""
        library = self._library
        sources = (_Output * len(feeds))(*map(self._output, feeds))
        targets = (_Output * len(fetches))(*map(self._output, fetches))
        results = (_Pointer * len(fetches))()
        tensors = (_Pointer * len(feeds))()
        try:
            for index, array in enumerate(feeds.values()):
                tensors[index] = _new_tensor(array)
            with _Status(library) as status:
                library.TF_SessionRun(
                    self._session,
                    None,
                    sources,
                    tensors,
                    len(feeds),
                    targets,
                    results,
                    len(fetches),
                    None,
                    0,
                    None,
                    status.handle,
                )
                status.check()
            return [_to_array(result) for result in results]
        finally:
            for tensor in (*tensors, *results):
                if tensor:
                    library.TF_DeleteTensor(tensor)

    def close(self):
        """Frees the graph and the weights; the session ends here."""
        if self._session is None:
            return
        session, self._session = self._session, None
        with _Status(self._library) as status:
            self._library.TF_CloseSession(session, status.handle)
            self._library.TF_DeleteSession(session, status.handle)
        self._library.TF_DeleteGraph(self._graph)
