"""What would run code in a file: pickles, bytecode, classes for Keras."""

import base64
import marshal
import os
import pickle

import numpy as np


class _Pickled:
    def __init__(self, marker):
        self._command = f"touch '{marker}'"

    def __reduce__(self):
        return os.system, (self._command,)


def pickled(marker):
    return pickle.dumps(_Pickled(marker))


def described(module, class_name, config, registered_name=None):
    """An object as Keras writes it in JSON."""
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": registered_name,
    }


def system(marker):
    """An object that Keras would make by calling `os.system`."""
    command = {"command": f"touch '{marker}'"}
    return described("os", "system", command, "os>system")


def popen(marker):
    return described("subprocess", "Popen", {"args": ["touch", str(marker)]})


def function(marker):
    return described("builtins", "function", "eval", "function")


def bytecode(marker):
    source = f"lambda x: open({str(marker)!r}, 'w').close()"
    return marshal.dumps(eval(source).__code__)


def lambda_layer(marker):
    code = base64.b64encode(bytecode(marker)).decode()
    function = {
        "class_name": "__lambda__",
        "config": {"code": code, "defaults": None, "closure": None},
    }
    config = {"name": "payload", "function": function}
    return described("keras.layers", "Lambda", config)


def saved_model_layer(marker):
    config = {"filepath": str(marker), "call_endpoint": "serve"}
    return described("keras.layers", "TFSMLayer", config)


def sequential(marker):
    config = {"name": "sequential", "layers": [lambda_layer(marker)]}
    return described("keras", "Sequential", config)


def replace(document, keys, value):
    """Sets what `document` holds under a path of keys; `""` is all of it."""
    if not keys:
        return value
    parent = document
    *path, last = keys.split(".")
    for key in path:
        parent = parent[key]
    parent[last] = value
    return document


def write_pickled_arrays(path, marker):
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = np.array([_Pickled(marker)], object)
    if path.suffix == ".npz":
        np.savez(path, **{"serving_default/inputs/text": objects})
    else:
        np.save(path, objects)
