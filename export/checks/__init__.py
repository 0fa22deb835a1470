"""What an exported SavedModel must do, one function per check.

A check returns a line for the table or raises an error. Nothing here imports
TensorFlow's Python.
"""

from export.checks import answers, files, graph, requests
from export.checks.exported import Exported, Failure
from export.session import StatusError

# The order of the table. These read files and run nothing.
STATIC = {
    "manifest": files.check_manifest,
    "files": files.check_files,
    "permissions": files.check_permissions,
    "ops": graph.check_ops,
    "xla": graph.check_xla,
    "signatures": graph.check_signatures,
    "graph": graph.check_graph,
    "vocabulary": graph.check_vocabulary,
    "card": files.check_card,
    "weights stored once": files.check_weights_once,
}
# These need the loaded model.
RUNNING = {
    "weights": answers.check_weights,
    "golden answers": answers.check_golden,
    "warm-up": answers.check_warmup,
    "scalar text": requests.check_scalar_text,
    "nested text": requests.check_nested_text,
    "empty batch": requests.check_empty_batch,
    "empty text": requests.check_empty_text,
    "1 MB text": requests.check_long_text,
    "invalid UTF-8": requests.check_invalid_utf8,
    "unlike numbers": requests.check_unlike_numbers,
    "wrong ids": requests.check_wrong_ids,
}
CHECKS = {**STATIC, "load": answers.check_load, **RUNNING}


def run(name: str, exported: Exported) -> tuple[bool, str]:
    """Runs a check; returns whether it passed, and what it found."""
    try:
        return True, CHECKS[name](exported)
    except (Failure, StatusError, OSError, ValueError) as error:
        return False, str(error)
    # A broken export may raise anything.
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
