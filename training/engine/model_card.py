"""The model card of a preset: README.md, in Hugging Face's format.

It states what the command that writes the preset knows, of paths only the last
part, and marks the rest "fill in". `keras_hub.upload_preset` replaces it where
the repository on the hub has no card yet, and then deletes it;
`huggingface_hub.upload_folder` uploads it.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import string
from collections.abc import Mapping
from typing import Any

import huggingface_hub
import keras
import tensorflow as tf

import keras_fixedhead
from keras_fixedhead.hardware import processor

_CARD = pathlib.Path(__file__).with_suffix(".md")
# The task of each class on the hub, and an example of a call.
_DEFAULT = ("feature-extraction", "model.summary()")
_TASKS = {
    "MaskedLM": ("fill-mask", 'model.preprocessor(["a text"])'),
    "CausalLM": ("text-generation", 'model.generate("a", max_length=9)'),
    "TextEmbedder": ("sentence-similarity", 'model.encode_text(["a text"])'),
    "TextClassifier": ("text-classification", 'model.predict(["a text"])'),
    "TokenClassifier": ("token-classification", 'model.predict(["a text"])'),
    "SpanLabeler": (
        "question-answering",
        'model(model.preprocessor((["a question"], ["a text"]), y=None))',
    ),
}
# Flags of all commands that name a model, or data, and those that matter most.
_MODELS = ("source", "init", "teacher", "teacher_embeddings")
_CHECKSUMS = ("init_sha256", "teacher_sha256")  # folders are often `preset`
_DATA = ("data", "validation", "calibration", "texts", "vocabulary")
_SETTINGS = (
    *("config", "steps", "global_batch_size", "learning_rate", "warmup_steps"),
    *("optimizer", "dtype", "strategy", "calibration_tokens", "seed"),
)
_SHAPE = (
    *("num_layers", "num_heads", "head_size", "hidden_dim"),
    *("intermediate_dim", "max_sequence_length", "vocabulary_size"),
)


def write_card(
    preset: pathlib.Path,
    config: Any,
    counts: Mapping[str, int] | None = None,
    replicas: int = 1,
) -> None:
    """Writes README.md into a preset that has all its other files.

    `config` is the dataclass of the command's flags. `counts` are sizes of the
    data, by name. Results are those in run.json, if the preset has one.
    """
    flags: dict[str, Any] = {}
    for name, value in vars(config).items():
        part = dataclasses.is_dataclass(value)
        flags |= vars(value) if part else {name: value}
    encoder, metadata, head, record = (
        _read(preset / f"{name}.json")
        for name in ("config", "metadata", "task", "run")
    )
    kind, shape = (head or encoder)["class_name"], encoder["config"]
    task, call = _TASKS.get(kind.removeprefix("FixedHead"), _DEFAULT)
    positions = shape["max_sequence_length"]
    shape["head_size"] = shape["head_size"] or positions
    preprocessor = head.get("config", {}).get("preprocessor") or {"config": {}}
    length = preprocessor["config"].get("sequence_length") or positions
    low_rank = min(keras.tree.flatten(shape["head_size"])) < length
    models = _names(flags, _MODELS)
    origin = " and ".join(models.values())
    recorded = record.get("settings", {})
    checksums = {x: recorded[x] for x in _CHECKSUMS if recorded.get(x)}
    settings = {x: flags[x] for x in _SETTINGS if flags.get(x) is not None}
    backend = keras.backend.backend()
    versions = {"keras_fixedhead": keras_fixedhead.__version__} | {
        name: importlib.metadata.version(name)
        for name in ("keras", "keras-hub", backend)
    }
    front_matter = huggingface_hub.ModelCardData(
        library_name="keras-hub", pipeline_tag=task, tags=["keras-fixedhead"]
    )
    card = string.Template(_CARD.read_text("utf-8")).substitute(
        front_matter=front_matter.to_yaml(),
        kind=kind,
        hidden_dim=shape["hidden_dim"],
        origin=f"Made from {origin}" if origin else "Made",
        command=type(config).__module__.removesuffix(".configs"),
        date=metadata["date_saved"].partition("@")[0],
        call=call,
        # A masked language model is not served, but its encoder is.
        flags=" --raw_encoder" if task == "fill-mask" else "",
        task=task.replace("-", " "),
        length=length,
        data=_list(models | checksums | _data(flags, models, counts or {})),
        shape=_list(
            {name: shape[name] for name in _SHAPE}
            | {"parameters of the encoder": metadata["parameter_count"]}
        ),
        bottleneck=f"The heads are {'' if low_rank else 'not '}smaller than "
        f"the sequence length of {length}: {'a' if low_rank else 'no'} "
        "low-rank bottleneck",
        run=_list(
            settings
            | {"replicas": replicas, "hardware": _hardware()}
            | versions
        ),
        # Only `query_encoder` has no run.json.
        results=_list(_numbers(record.get("figures", {})))
        or "The folder above has those of the model there.",
    )
    (preset / "README.md").write_text(card, encoding="utf-8")


def _data(flags, models, counts):
    """Describes the data: names, sizes, and what only others know."""
    data = _names(flags, _DATA)
    origin = " and ".join(models.values())
    data.setdefault("vocabulary", f"of {origin or data['data']}")
    # What `training.prepare` made the data folder of.
    folder = pathlib.Path(flags.get("data", os.devnull))
    manifest = _read(folder / "manifest.json")
    if "vocabulary_sha256" in manifest:  # nobody else's
        made = _names(manifest["arguments"], ("source", "heldout_source"))
        data |= {f"{name} of the data": value for name, value in made.items()}
    unknown = {
        f"training data of {name}": "fill in" for name in models.values()
    }
    return data | counts | unknown


def _read(path):
    """Returns the object in a JSON file, {} if there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _names(flags, names):
    """Returns what those of the flags `names` that are given name."""
    found = {}
    for name in names:
        given = flags.get(name) or ()
        paths = given if isinstance(given, (tuple, list)) else (given,)
        if paths:
            found[name] = ", ".join(f"`{_name(path)}`" for path in paths)
    return found


def _name(path):
    """Returns the last part of a path, all of a name such as tfds:glue/mnli."""
    parent = os.path.dirname(path)
    if parent and not os.path.isabs(path) and not os.path.exists(parent):
        return path
    return os.path.basename(os.path.abspath(path))


def _numbers(figures, prefix=""):
    """Returns the numbers in nested dictionaries by name, without lists."""
    found = {}
    for name, value in figures.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{prefix}{name}, ")
        elif isinstance(value, (int, float)):
            found[f"{prefix}{name}"] = value
    return found


def _list(values):
    styles = {int: ",", float: ".4g"}
    return "\n".join(
        f"- {name}: {value:{styles.get(type(value), '')}}"
        for name, value in values.items()
    )


def _hardware():
    names = [processor()]
    for device in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(device)
        names.append(details.get("device_name", "GPU"))
    return ", ".join(names)
