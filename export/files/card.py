"""The card of an export: the model, its training run and the versions."""

import datetime
import importlib.metadata
import json
import math
import pathlib
from typing import Any

FILE = "assets.extra/card.json"
_RUN_FILE = "run.json"  # what training writes into its preset
_PACKAGES = ("keras", "keras-hub", "tensorflow", "tensorflow-text")


def describe(service: Any, source: str | pathlib.Path) -> dict:
    """Describes a `Service`, and the training run of the preset folder or
    `.keras` file that it came from."""
    source = pathlib.Path(source)
    backbone, preprocessor = service.backbone, service.preprocessor
    run = source / _RUN_FILE
    return {
        "model": type(service.model).__name__,
        "source": source.resolve().name,
        "run": json.loads(run.read_text("utf-8")) if run.is_file() else None,
        "created": datetime.datetime.now(datetime.UTC).isoformat(
            timespec="seconds"
        ),
        "dtype": service.dtype,
        "num_layers": backbone.num_layers,
        "num_heads": backbone.num_heads,
        "head_size": backbone.head_size or backbone.max_sequence_length,
        "hidden_dim": backbone.hidden_dim,
        "max_sequence_length": backbone.max_sequence_length,
        "num_segments": backbone.num_segments,
        "sequence_length": preprocessor.sequence_length,
        **service.described,
        "parameters": service.model.count_params(),
        "parameter_bytes": sum(
            math.prod(weight.shape) * weight.value.dtype.size
            for weight in service.model.weights
        ),
        "vocabulary_size": backbone.vocabulary_size,
        "versions": {
            name: importlib.metadata.version(name) for name in _PACKAGES
        },
    }


def save(folder: pathlib.Path, card: dict) -> None:
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (folder / FILE).write_text(text, encoding="utf-8")


def load(folder: pathlib.Path) -> dict:
    return json.loads((folder / FILE).read_text(encoding="utf-8"))
