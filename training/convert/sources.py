"""Detects the format of a source, such as Hugging Face's, and reads it."""

import pathlib
import typing

import keras
import keras_hub
from keras_hub.src.utils import preset_utils

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from keras_fixedhead.convert import (
    BertSource,
    read_bert_backbone,
    read_hugging_face,
)
from keras_fixedhead.convert.bert_files import read_json
from keras_fixedhead.convert.hugging_face import is_hub_name
from keras_fixedhead.files import loading
from training.convert.tensorflow_checkpoint import read_checkpoint
from training.engine.preset import read_task

_TASKS: dict[str, typing.Any] = {
    "text_embedder": FixedHeadTextEmbedder,
    "masked_lm": FixedHeadMaskedLM,
}


def read_model(
    source: str, task: str, flags: dict[str, typing.Any]
) -> tuple[BertSource | None, keras.Model, FixedHeadTokenizer | None]:
    """Returns what was read (`None` for our own preset), a model, a tokenizer.

    `flags` that are not `None` replace what the source states.
    """
    given = {flag: value for flag, value in flags.items() if value is not None}
    config = read_json(pathlib.Path(source, "config.json"), default={})
    if config.get("class_name") == FixedHeadBackbone.__name__:
        if given:
            raise ValueError(
                f"{source} is a preset of this library, which states its own "
                f"settings. Remove these flags: {', '.join(given)}"
            )
        return None, *read_own_preset(source, task)
    if "pooling" in given:
        given["pooling_mode"] = given.pop("pooling")
    found = _read_source(source, config, **given)
    tokenizer = None if found.vocabulary is None else found.tokenizer()
    return found, found.build(task), tokenizer


def _read_source(source, config, truncation_side=None, **overrides):
    """Reads a folder, checkpoint prefix, KerasHub preset or Hub repository."""
    path = pathlib.Path(source)
    if "registered_name" in config:
        return _read_keras_hub(source, **overrides)
    if config or (path / "modules.json").exists():
        return read_hugging_face(path, truncation_side, **overrides)
    if path.exists() or path.with_name(f"{path.name}.index").exists():
        return read_checkpoint(path, **overrides)
    # KerasHub would replace the gelu of Hugging Face's BERTs by another.
    if is_hub_name(source):
        return read_hugging_face(source, truncation_side, **overrides)
    if source.startswith(("hf://", "modelscope://")):
        raise ValueError(
            "`source` must be on this machine, a preset of KerasHub's own, or "
            "hf://owner/name. Download the folder and pass its path. "
            f"Received: {source}"
        )
    if "://" in source or source in keras_hub.models.BertBackbone.presets:
        return _read_keras_hub(source, **overrides)
    raise FileNotFoundError(
        "`source` is no folder, no checkpoint, no repository of the Hugging "
        "Face Hub (owner/name) and no preset of KerasHub "
        f"({', '.join(sorted(keras_hub.models.BertBackbone.presets))}). "
        f"Received: {source}"
    )


def read_own_preset(
    source: str, task: str
) -> tuple[keras.Model, FixedHeadTokenizer | None]:
    """Returns the model and tokenizer (or `None`) of our preset folder."""
    if task != "backbone":
        model = read_task(pathlib.Path(source), "source", _TASKS[task])
        return model, model.preprocessor.tokenizer
    with loading(source, "source"):
        tokenizer = _tokenizer(FixedHeadTokenizer, source)
        return FixedHeadBackbone.from_preset(source), tokenizer


def _read_keras_hub(source, **overrides):
    config = read_json(pathlib.Path(source, "config.json"), default={})
    if config.get("class_name", "BertBackbone") != "BertBackbone":
        raise ValueError(
            f"{source} is a preset of {config['class_name']}. It must be of "
            "KerasHub's BertBackbone, or of this library"
        )
    with loading(source, "source"):
        backbone = keras_hub.models.BertBackbone.from_preset(source)
        tokenizer = _tokenizer(keras_hub.models.BertTokenizer, source)
    found = _settings_of_embedder(source, backbone.max_sequence_length)
    return read_bert_backbone(backbone, tokenizer, **{**found, **overrides})


def _settings_of_embedder(source, max_sequence_length):
    """Reads the settings of a `BertTextEmbedder`'s preset, if it is one."""
    # Loading the preset would fill in defaults for missing settings.
    if not preset_utils.check_file_exists(source, "task.json"):
        return {}
    task = read_json(preset_utils.get_file(source, "task.json"))
    if task["class_name"] != "BertTextEmbedder":
        return {}
    config = task["config"]
    found = {name: config.get(name) for name in ("pooling_mode", "normalize")}
    preprocessor = (config.get("preprocessor") or {}).get("config", {})
    length = preprocessor.get("sequence_length")
    if length is not None:
        found["sequence_length"] = min(length, max_sequence_length)
    return found


def _tokenizer(cls, source):
    try:
        return cls.from_preset(source)
    except FileNotFoundError:
        return None  # a preset may be of a backbone alone
