"""The batch sizes of a model server: its `--batching_parameters_file`."""

import pathlib
import re

DEFAULT = (
    pathlib.Path(__file__).parents[1]
    / "deploy"
    / "config"
    / "batching_parameters.txt"
)
_BATCH_SIZE = re.compile(r"^\s*allowed_batch_sizes\s*:\s*(\d+)", re.MULTILINE)


def sizes(path: str | pathlib.Path) -> list[int]:
    """Reads the batch sizes that a server runs."""
    found = _BATCH_SIZE.findall(pathlib.Path(path).read_text("utf-8"))
    if not found:
        raise ValueError(
            f"`batching_parameters_file` {path} has no `allowed_batch_sizes`, "
            "which the warm-up follows. Add them, the last equal to "
            "max_batch_size."
        )
    return [int(size) for size in found]
