"""Files that sentence-transformers adds to Hugging Face's, both ways."""

import pathlib
from typing import Any

import numpy as np

from keras_fixedhead.convert.bert_files import (
    read_field,
    read_json,
    read_settings,
    require_values,
)
from keras_fixedhead.convert.bert_source import PROJECTION
from keras_fixedhead.convert.hugging_face_weights import write_weights
from keras_fixedhead.files import write_json
from keras_fixedhead.text_embedder import POOLING_MODES, FixedHeadTextEmbedder

_MODULES = "modules.json"
_POOLING = "1_Pooling"
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
# A module that multiplies by a matrix, and does nothing else.
_LINEAR = {
    "activation_function": "torch.nn.modules.linear.Identity",
    "bias": False,
}
_TOKENIZER = "tokenizer_config.json"
_LENGTHS = "sentence_bert_config.json"
_PROMPTS = "config_sentence_transformers.json"

# The fields of pooling modes before version 6.
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


def transformer_folder(folder: pathlib.Path) -> pathlib.Path:
    """Returns the encoder's folder, `0_Transformer` in version 1."""
    return dict(_modules(folder)).get("Transformer", folder)


def dense_folder(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of the matrix after pooling, if there is one."""
    dense = dict(_modules(folder)).get("Dense")
    if dense is not None:
        path = dense / "config.json"
        # What sentence-transformers takes for granted.
        defaults = {"activation_function": "torch.nn.modules.Tanh"}
        config = {**defaults, "bias": True, **read_json(path)}
        require_values(config, {**_LINEAR, "use_residual": False}, path)
    return dense


def read_sentence_transformer(
    folder: pathlib.Path, max_sequence_length: int, lowercase: bool | None
) -> dict[str, Any]:
    """Reads `BertSource`'s pooling, normalization, length and prompts."""
    encoder = transformer_folder(folder)
    if not (folder / _MODULES).exists():
        length = _read_length(encoder, {}, max_sequence_length)
        return {"sequence_length": length}
    modules = _modules(folder)
    kinds = tuple(kind for kind, _ in modules)
    optional = {kind for kind in _KINDS[2:] if kind not in kinds}
    if kinds != tuple(kind for kind in _KINDS if kind not in optional):
        raise ValueError(
            f"{folder / _MODULES} has the modules {', '.join(kinds)}. There "
            f"must be {', '.join(_KINDS)}, where the last two are optional"
        )
    advice = ". Remove it from the file if it changes no embedding"
    path = encoder / _LENGTHS
    lengths = read_settings(path, advice)
    if lowercase is False and lengths.get("do_lower_case"):
        raise ValueError(
            f"{path} lower-cases before a tokenizer that keeps accents. The "
            "tokenizer here does both or neither"
        )
    path = folder / _PROMPTS
    config = read_settings(path, advice)
    prompts = read_field(config, "prompts", dict, path, {})
    texts = {name: read_field(prompts, name, str, path) for name in prompts}
    prompts = {name: text for name, text in texts.items() if text}
    default = config.get("default_prompt_name")
    return {
        "pooling_mode": _read_pooling(modules[1][1] / "config.json"),
        "normalize": kinds[-1] == "Normalize",
        "sequence_length": _read_length(encoder, lengths, max_sequence_length),
        "prompts": prompts,
        "default_prompt": default if default in prompts else None,
    }


def write_sentence_transformer(
    folder: pathlib.Path,
    embedder: FixedHeadTextEmbedder,
    projection: np.ndarray | None,
) -> None:
    kinds = ["Transformer", "Pooling"]
    kinds += ["Dense"] if projection is not None else []
    kinds += ["Normalize"] if embedder.normalize else []
    modules = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
    write_json(
        folder / _MODULES,
        [
            {
                "idx": i,
                "name": str(i),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, (path, kind) in enumerate(zip(modules, kinds))
        ],
    )
    for path in modules[1:]:
        (folder / path).mkdir()
    write_json(
        folder / _POOLING / "config.json",
        {
            "word_embedding_dimension": embedder.backbone.hidden_dim,
            **{x: embedder.pooling_mode == mode for mode, x in _FLAGS.items()},
        },
    )
    if projection is not None:
        inputs, outputs = projection.shape
        write_json(
            folder / modules[2] / "config.json",
            {"in_features": inputs, "out_features": outputs, **_LINEAR},
        )
        write_weights(
            folder / modules[2] / "model.safetensors",
            {PROJECTION: projection},
            prefix="",
        )
    preprocessor = embedder.preprocessor
    if preprocessor is not None:
        write_json(
            folder / _LENGTHS,
            {
                "max_seq_length": preprocessor.sequence_length,
                "do_lower_case": False,
            },
        )
        write_json(
            folder / _PROMPTS,
            {"prompts": preprocessor.prompts, "default_prompt_name": None},
        )


def _modules(folder):
    """Lists the class, without its package, and folder of each module."""
    path = folder / _MODULES
    modules = []
    for module in read_json(path, default=[], kind=list):
        kind = read_field(module, "type", str, path, "")
        where = pathlib.PurePath(read_field(module, "path", str, path, ""))
        if (
            not kind.startswith("sentence_transformers.")
            or where.is_absolute()
            or ".." in where.parts
        ):
            raise ValueError(
                f"{path} must list modules of sentence-transformers, in this "
                f"folder. Others may compute anything. Received: {module!r}"
            )
        modules.append((kind.rpartition(".")[2], folder / where))
    return modules


def _read_length(encoder, lengths, longest):
    tokenizer = read_json(encoder / _TOKENIZER, default={})
    # Written by sentence-transformers before version 6, by version 6, and by
    # `transformers` before version 3.
    for path, config, name in (
        (encoder / _LENGTHS, lengths, "max_seq_length"),
        (encoder / _TOKENIZER, tokenizer, "model_max_length"),
        (encoder / _TOKENIZER, tokenizer, "max_len"),
    ):
        # No limit is 10^30, which may be written as a float.
        length = read_field(config, name, float, path)
        if length is None:
            continue
        if length < 3 or length % 1:
            raise ValueError(
                f"`{name}` in {path} must be an integer over 2, the special "
                f"tokens. Received: {length}"
            )
        return min(int(length), longest)
    return None


def _read_pooling(path):
    config = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        ours = {flag: mode for mode, flag in _FLAGS.items()}
        modes = [
            ours.get(name, name)
            for name, value in config.items()
            if name.startswith("pooling_mode_") and value
        ]
    elif not isinstance(modes, list):
        modes = [modes]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise ValueError(
            f"{path} must name one way of pooling, of {POOLING_MODES}. "
            f"Received: {modes}"
        )
    advice = ": the tokens of a prompt are part of the embedding"
    require_values(config, {"include_prompt": True}, path, advice)
    return modes[0]
