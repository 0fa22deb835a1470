"""The model server's configuration beside the versions of a model.

Written once, from the templates of `export/deploy/config`; what stands there
already is the operator's and stays.
"""

import pathlib
import re

from google.protobuf import text_format

from export import messages
from keras_fixedhead.files import replaced

BATCHING_FILE = "batching_parameters.txt"
MODELS_FILE = "models.config"
MONITORING_FILE = "monitoring.config"
# Where the image of TF Serving has its models.
_MOUNT = "/models"
_TEMPLATES = pathlib.Path(__file__).parents[1] / "deploy" / "config"
_BATCH_SIZE = re.compile(r"^\s*allowed_batch_sizes\s*:\s*(\d+)", re.MULTILINE)


def _models(name):
    """Writes a `ModelServerConfig` of one model, its newest version."""
    config = messages.model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add(
        name=name, base_path=f"{_MOUNT}/{name}", model_platform="tensorflow"
    )
    return text_format.MessageToString(config)


def write(folder):
    """Writes the files that are missing.

    Args:
        folder: `pathlib.Path` of the folder of versions, named as its model.
    """
    contents = {
        BATCHING_FILE: (_TEMPLATES / BATCHING_FILE).read_text("utf-8"),
        MODELS_FILE: _models(folder.name),
        MONITORING_FILE: (_TEMPLATES / MONITORING_FILE).read_text("utf-8"),
    }
    for name, content in contents.items():
        path = folder / name
        if not path.exists():
            with replaced(path) as partial:
                partial.write_text(content, encoding="utf-8")


def batch_sizes(folder):
    """Returns the batch sizes that the server of a folder runs.

    Raises:
        ValueError: if its batching parameters allow none in particular.
    """
    path = folder / BATCHING_FILE
    sizes = [int(s) for s in _BATCH_SIZE.findall(path.read_text("utf-8"))]
    if not sizes:
        raise ValueError(
            f"{path} names no `allowed_batch_sizes`, which the warm-up "
            "follows. Add them, the last equal to max_batch_size."
        )
    return sizes
