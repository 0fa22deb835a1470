"""Reads a source of any format, compares it with its conversion, grows it,
writes it."""

import dataclasses
import json
import math
import os
import pathlib
import sys
import typing

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils import preset_utils

from keras_fixedhead import (
    FixedHeadBackbone,
    FixedHeadMaskedLM,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
    growth,
)
from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.convert import (
    BertSource,
    read_bert_backbone,
    read_hugging_face,
    to_hugging_face,
)
from keras_fixedhead.convert.bert_files import read_json
from keras_fixedhead.convert.bert_source import SPECIAL_TOKEN_TEXTS
from keras_fixedhead.convert.hugging_face import is_hub_name
from keras_fixedhead.files import loading
from training.convert.check import compare, inputs_of
from training.convert.configs import ConvertConfig
from training.convert.tensorflow_checkpoint import read_checkpoint
from training.corpus.texts import read_texts
from training.engine.model_card import write_card
from training.engine.preset import read_task, write_preset
from training.prepare.docstrings import read_docstrings

# Flags that override what a source states.
_OVERRIDES = (
    "pooling",
    "normalize",
    "lowercase",
    "special_tokens_in_strings",
    "truncation_side",
)

_TASKS: dict[str, typing.Any] = {
    "text_embedder": FixedHeadTextEmbedder,
    "masked_lm": FixedHeadMaskedLM,
}


def convert(config: ConvertConfig) -> None:
    """Builds, compares and writes the model that `config` describes.

    An error means that nothing was written.
    """
    if config.output.exists():
        raise FileExistsError(
            f"{config.output} exists. Choose another --output, or remove it"
        )
    _say("reading the texts to compare on")
    texts = _read_texts(config)
    # The slow comparisons come after everything that may be refused.
    _say(f"reading {config.source}")
    source, converted, tokenizer = _read_model(config)
    model = converted
    changes = []
    seed = {"seed": config.seed}
    for name, change, arguments in (
        ("drop_layers", growth.drop_layers, {}),
        ("max_sequence_length", growth.grow_positions, {}),
        ("num_heads", growth.grow_heads, seed),
        ("head_size", growth.grow_head_size, seed),
    ):
        value = getattr(config, name)
        if value not in (None, ()):
            _say(f"changing {name} to {value}")
            before, model = model, change(model, value, **arguments)
            changes.append((name, value, before, model))
    _set_length_and_prompts(model, config)
    _say(f"comparing token ids of {len(texts)} texts")
    inputs = inputs_of(texts, converted, tokenizer)
    metrics = {}
    if source is not None:
        for line in _remarks(source, converted, tokenizer, texts):
            _say(line)
        agreement = compare(source, converted, inputs)
        agreement.require("The conversion is not exact")
        _say(f"converted: {agreement}")
        metrics["conversion"] = dataclasses.asdict(agreement)
    for name, value, before, after in changes:
        what = f"{name} {value}"
        if name == "drop_layers":
            moved = growth.output_change(before, after, inputs)
            _say(
                f"{what}: outputs have a mean cosine similarity of "
                f"{moved.mean_cosine:.4f} to those before, and differ by "
                f"{moved.largest_difference:.2g} at most"
            )
            metrics[name] = dataclasses.asdict(moved)
        else:
            agreement = compare(before, after, inputs)
            agreement.require(f"{what} does not keep the outputs")
            _say(f"{what}: {agreement}")
            metrics[name] = dataclasses.asdict(agreement)

    def save(folder):
        model.save_to_preset(str(folder))
        if isinstance(model, FixedHeadBackbone) and tokenizer is not None:
            tokenizer.save_to_preset(str(folder))
        arguments = dataclasses.asdict(config)
        del arguments["output"], arguments["to"]
        record = {"settings": {"conversion": arguments}, "figures": metrics}
        text = json.dumps(record, indent=2, default=os.fspath)
        (folder / "run.json").write_text(f"{text}\n", encoding="utf-8")
        write_card(folder, config)

    _say(f"writing {config.output}")
    config.output.parent.mkdir(parents=True, exist_ok=True)
    if config.to == "hugging_face":
        to_hugging_face(model, config.output)
    else:
        write_preset(config.output, model, save)
    _say(f"wrote {config.output}: {model.count_params():,} parameters")


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _read_model(
    config: ConvertConfig,
) -> tuple[BertSource | None, keras.Model, FixedHeadTokenizer | None]:
    """Returns what was read (`None` for our own preset), a model, a tokenizer.

    Flags that are not `None` replace what the source states.
    """
    source, flags = config.source, {x: getattr(config, x) for x in _OVERRIDES}
    given = {flag: value for flag, value in flags.items() if value is not None}
    stated = read_json(pathlib.Path(source, "config.json"), default={})
    if stated.get("class_name") == FixedHeadBackbone.__name__:
        if given:
            raise ValueError(
                f"{source} is a preset of this library, which states its own "
                f"settings. Remove these flags: {', '.join(given)}"
            )
        return None, *read_own_preset(source, config.task)
    if "pooling" in given:
        given["pooling_mode"] = given.pop("pooling")
    found = _read_source(source, stated, **given)
    tokenizer = None if found.vocabulary is None else found.tokenizer()
    return found, found.build(config.task), tokenizer


def _read_source(source, config, truncation_side=None, **overrides):
    """Reads a folder, checkpoint prefix, KerasHub preset or Hub repository."""
    path = pathlib.Path(source)
    if "registered_name" in config:
        return _read_keras_hub(source, config, **overrides)
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
        return _read_keras_hub(source, config, **overrides)
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


def _read_keras_hub(source, config, **overrides):
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


def _read_texts(config):
    positive_int("num_texts", config.num_texts)
    if config.texts is not None:
        return read_texts(config.texts, config.num_texts)
    pairs, _ = read_docstrings([os.path.dirname(keras.__file__)])
    # Evenly spread, since they are in alphabetical order.
    step = math.ceil(len(pairs) / config.num_texts)
    return [pair.document for pair in pairs[::step]]


def _remarks(source, model, tokenizer, texts):
    """Yields what the user should know about a conversion."""
    unused = source.left_out(model)
    if unused:
        yield f"left out, unused by this task: {', '.join(unused)}"
    if source.default_prompt:
        yield (
            f"the source puts its prompt {source.default_prompt!r} before "
            "texts by default; here callers always name a prompt"
        )
    if tokenizer is None:
        yield "the source has no vocabulary: compared on random token ids"
    elif source.tokenize is not None:
        graph = tf.function(
            tokenizer.tokenize_in_graph,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        for what, tokenize, compared in (
            ("token ids", tokenizer, texts),
            (
                "token ids in TensorFlow graphs",
                lambda texts: graph(tf.constant(texts)).to_list(),
                texts,
            ),
            ("special tokens in texts", tokenizer, SPECIAL_TOKEN_TEXTS),
        ):
            differing = source.differing_texts(tokenize, compared)
            example = f", such as {differing[0][:60]!r}" if differing else ""
            yield (
                f"{what}: {len(differing)} of {len(compared)} texts differ "
                f"from the source's tokenizer{example}"
            )
        if differing and not tokenizer.special_tokens_in_strings:
            yield "they are text here: see --special_tokens_in_strings"


def _set_length_and_prompts(model, config):
    prompts = {"query": config.query_prompt, "document": config.document_prompt}
    prompts = {name: x for name, x in prompts.items() if x is not None}
    if prompts and config.task != "text_embedder":
        raise ValueError("Prompts need --task text_embedder")
    length = config.sequence_length
    if length is not None and config.task == "backbone":
        raise ValueError("A length needs another --task than backbone")
    if length is not None:
        longest = model.backbone.max_sequence_length
        if not 3 <= length <= longest:
            raise ValueError(
                f"`sequence_length` must be from 3 to {longest}, the model's "
                "positions (more with --max_sequence_length). Received: "
                f"{length}"
            )
        model.preprocessor.sequence_length = length
    if prompts:
        model.preprocessor.prompts |= prompts
