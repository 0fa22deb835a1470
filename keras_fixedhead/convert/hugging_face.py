"""Folders of BERTs and sentence-transformers in Hugging Face's format."""

import os
import pathlib
import re
import tempfile
from typing import Any

import keras

from keras_fixedhead.convert import bert_files
from keras_fixedhead.convert.bert_source import (
    PROJECTION,
    BertSource,
    Model,
    named_weights,
)
from keras_fixedhead.convert.hugging_face_tokenizer import (
    read_tokenizer,
    write_tokenizer,
)
from keras_fixedhead.convert.hugging_face_weights import (
    read_weights,
    write_weights,
)
from keras_fixedhead.convert.sentence_transformers import (
    dense_folder,
    read_sentence_transformer,
    transformer_folder,
    write_sentence_transformer,
)
from keras_fixedhead.files import write_json
from keras_fixedhead.growth import backbone_of
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder

_HUB = "hf://"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Pickles are left out: reading one may run any code.
_HUB_FILES = ["*.json", "*.txt", "*.safetensors"]

# Activations of `transformers` that Keras computes too. The first name of
# several is the one that is written.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_accurate": "gelu_approximate",
    "gelu_fast": "gelu_approximate",
    "gelu_python_tanh": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def from_hugging_face(
    folder: str | os.PathLike,
    task: str = "text_embedder",
    special_tokens_in_strings: bool = False,
    **overrides: Any,
) -> Model:
    """Builds a model from a folder in Hugging Face's format.

    This takes BERTs and models of the same architecture, such as MiniLM, BGE,
    E5 and GTE.

    Args:
        folder: the path of a folder with `config.json`, safetensors, a
            vocabulary and, if any, the files of sentence-transformers; or the
            name of a repository of the Hugging Face Hub, `owner/name`, whose
            JSON, text and safetensors files are downloaded into its cache.
        task: see `BertSource.build`.
        special_tokens_in_strings: bool. Whether special tokens in texts, such
            as `[SEP]` in `"title [SEP] abstract"`, become ids, as in
            `transformers` and sentence-transformers. The default treats them
            as text: with `True`, untrusted text can end its own sequence.
        **overrides: values that replace or complete what the folder states:
            `lowercase`, `pooling_mode`, `normalize`, `sequence_length`,
            `prompts`. `truncation_side="right"` accepts a folder that
            truncates texts on the left.

    A `ValueError` or `OSError` names what is unsupported, damaged or missing.

    Example:

    ```python
    embedder = convert.from_hugging_face(
        "sentence-transformers/all-MiniLM-L6-v2"
    )
    embedder.encode_text(["reverse the order of the rows"])
    ```
    """
    return read_hugging_face(
        folder,
        special_tokens_in_strings=special_tokens_in_strings,
        **overrides,
    ).build(task)


def read_hugging_face(
    folder: str | os.PathLike,
    truncation_side: str | None = None,
    **overrides: Any,
) -> BertSource:
    """Reads a folder as a `BertSource`; see `from_hugging_face`."""
    path = _local_folder(folder)
    encoder = transformer_folder(path)
    config = _read_config(encoder / "config.json")
    tokenizer = read_tokenizer(
        encoder,
        overrides.get("lowercase"),
        overrides.get("special_tokens_in_strings", False),
        truncation_side,
    )
    found = read_sentence_transformer(
        path, config["max_sequence_length"], tokenizer["lowercase"]
    )
    tensors, spell = read_weights(encoder)
    dense = dense_folder(path)
    if dense is not None:
        tensors |= read_weights(dense)[0]
    return BertSource(
        origin=str(encoder),
        config=config,
        tensors=tensors,
        spell=spell,
        **{**tokenizer, **found, **overrides},
    )


def is_hub_name(source: str | os.PathLike) -> bool:
    """Whether `source` names a repository, `owner/name`, and not a path.

    With `hf://` before it, it always does.
    """
    source = str(source)
    name = source.removeprefix(_HUB)
    if _HUB_NAME.fullmatch(name) is None:
        return False
    path = pathlib.Path(name)
    return source != name or not (path.exists() or path.parent.exists())


def _local_folder(source):
    path = pathlib.Path(source)
    if path.is_dir():
        return path
    if not is_hub_name(source):
        raise FileNotFoundError(
            "`folder` must be a folder in Hugging Face's format, or a repo's "
            f"name on its Hub, [hf://]owner/name. Received: {str(source)!r}"
        )
    import huggingface_hub

    name = str(source).removeprefix(_HUB)
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES)
        )
    except Exception as error:  # network, HTTP and its own errors
        reason = str(error).strip().partition("\n")[0]
        raise FileNotFoundError(
            f"{name} is no folder here, and cannot be downloaded "
            f"({type(error).__name__}: {reason}). Elsewhere, call "
            f"huggingface_hub.snapshot_download({name!r}) and pass the folder"
        ) from error


def to_hugging_face(model: Model, folder: str | os.PathLike) -> None:
    """Writes a model as a new folder that `transformers` loads.

    sentence-transformers loads the folder of an embedder, too. The head size
    must be `hidden_dim / num_heads`; BERT's format has no place for other
    heads, attention windows, scales or causal attention.
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists. Choose another folder, or remove it"
        )
    backbone = backbone_of(model)
    config = _written_config(model, backbone)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent
    ) as temporary:
        new = pathlib.Path(temporary, "new")
        new.mkdir()
        write_json(new / "config.json", config)
        weights = {
            name: keras.ops.convert_to_numpy(weight)
            for name, weight in named_weights(model).items()
        }
        projection = weights.pop(PROJECTION, None)
        write_weights(
            new / "model.safetensors",
            weights,
            prefix="bert." if isinstance(model, FixedHeadMaskedLM) else "",
        )
        preprocessor = getattr(model, "preprocessor", None)
        if preprocessor is not None:
            write_tokenizer(
                new, preprocessor.tokenizer, backbone.max_sequence_length
            )
        if isinstance(model, FixedHeadTextEmbedder):
            write_sentence_transformer(new, model, projection)
        new.rename(folder)


def _read_config(path):
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name} of Hugging Face's format"
        )
    config = bert_files.read_json(path)
    if "registered_name" in config:
        raise ValueError(
            f"{path.parent} is a preset of KerasHub or of this library: load "
            "it with `from_preset`"
        )
    if config.get("model_type") != "bert":
        raise ValueError(
            f"{path} is of another architecture than BERT. Received: "
            f"model_type={config.get('model_type')!r}"
        )
    bert_files.require_values(config, bert_files.SUPPORTED[path.name], path)
    adapter = path.with_name("adapter_config.json")
    if adapter.exists():
        raise ValueError(
            f"{adapter} is of an adapter (such as LoRA) to the weights beside "
            "it. Merge it into them with PEFT's `merge_and_unload` first"
        )
    if "AutoModel" in bert_files.read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names the model's own code (auto_map). Remove that entry "
            "if the model is a BERT"
        )
    epsilon = bert_files.read_field(
        config, "layer_norm_eps", float, path, 1e-12
    )
    arguments = bert_files.read_arguments(config, path, _ACTIVATIONS)
    return {**arguments, "layer_norm_epsilon": epsilon}


def _written_config(model, backbone):
    activations = {
        ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())
    }
    layers = [x.attention.head_sizes for x in backbone.transformer_layers]
    standard = backbone.hidden_dim / backbone.num_heads
    for name, value, takes in (
        ("head_size", {*sum(layers, ())}, [{standard}]),
        ("attention_window", backbone.attention_window, [None]),
        ("attention_scale", backbone.attention_scale, [None]),
        ("causal", backbone.causal, [False]),
        ("activation", backbone.activation, [*activations]),
        ("embedding_dim", getattr(model, "embedding_dim", None), [None]),
    ):
        if value not in takes:
            raise ValueError(
                f"Hugging Face's BERT has no place for this `{name}`: it must "
                f"be one of {takes}. Received: {name}={value!r}"
            )
    preprocessor = getattr(model, "preprocessor", None)
    pad = 0 if preprocessor is None else preprocessor.tokenizer.pad_token_id
    architecture = "BertModel"
    if isinstance(model, FixedHeadMaskedLM):
        architecture = (
            "BertForPreTraining" if model.next_sentence else "BertForMaskedLM"
        )
    return {
        "architectures": [architecture],
        "model_type": "bert",
        **{
            theirs: getattr(backbone, ours)
            for ours, theirs in bert_files.CONFIG_NAMES.items()
        },
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "hidden_act": activations[backbone.activation],
        "hidden_dropout_prob": backbone.dropout,
        "attention_probs_dropout_prob": backbone.dropout,
        "layer_norm_eps": backbone.layer_norm_epsilon,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
