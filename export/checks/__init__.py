"""What an exported SavedModel must do, one function per check.

A check returns a line for the table or raises an error. Nothing here imports
TensorFlow's Python. Checks run in a process of their own, `main`, since one may
crash it.
"""

import json
import sys

from export.checks import running, static
from export.checks.exported import Exported, Failure
from export.session import StatusError

# The order of the table. These read files and run nothing.
STATIC = {
    "manifest": static.check_manifest,
    "files": static.check_files,
    "permissions": static.check_permissions,
    "ops": static.check_ops,
    "xla": static.check_xla,
    "signatures": static.check_signatures,
    "graph": static.check_graph,
    "vocabulary": static.check_vocabulary,
    "card": static.check_card,
    "weights stored once": static.check_weights_once,
}
# These need the loaded model.
RUNNING = {
    "weights": running.check_weights,
    "golden answers": running.check_golden,
    "warm-up": running.check_warmup,
    "scalar text": running.check_scalar_text,
    "nested text": running.check_nested_text,
    "empty batch": running.check_empty_batch,
    "empty text": running.check_empty_text,
    "1 MB text": running.check_long_text,
    "invalid UTF-8": running.check_invalid_utf8,
    "unlike numbers": running.check_unlike_numbers,
    "wrong ids": running.check_wrong_ids,
}
CHECKS = {**STATIC, "load": running.check_load, **RUNNING}


def run(name: str, exported: Exported) -> tuple[bool, str]:
    """Runs a check; returns whether it passed, and what it found."""
    try:
        return True, CHECKS[name](exported)
    except (Failure, StatusError, OSError, ValueError) as error:
        return False, str(error)
    # A broken export may raise anything.
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


def main() -> None:
    """Runs the checks `argv[2:]` on the folder `argv[1]`; prints a JSON line as
    each starts, as it goes on, and as it ends."""

    def tell(doing: str | None = None, **result: object) -> None:
        report = {"name": name, "doing": doing, **result}
        print(json.dumps(report), flush=True)

    exported = Exported(sys.argv[1], tell)
    for name in sys.argv[2:]:
        tell()
        passed, detail = run(name, exported)
        tell(passed=passed, detail=detail)
