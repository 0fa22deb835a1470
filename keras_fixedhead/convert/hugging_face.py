"""Hugging Face's folders of BERTs and of sentence-transformers."""

import pathlib
import tempfile

import keras

from keras_fixedhead.convert.bert_config import CONFIG_NAMES, read_sizes
from keras_fixedhead.convert.bert_source import (
    BertSource,
    named_weights,
)
from keras_fixedhead.convert.hub import local_folder
from keras_fixedhead.convert.hugging_face_tokenizer import (
    read_tokenizer,
    write_tokenizer,
)
from keras_fixedhead.convert.hugging_face_weights import (
    read_weights,
    write_weights,
)
from keras_fixedhead.convert.json_files import (
    read_field,
    read_json,
    write_json,
)
from keras_fixedhead.convert.sentence_transformers import (
    read_sentence_transformer,
    transformer_folder,
    write_sentence_transformer,
)
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from keras_fixedhead.text_embedder import FixedHeadTextEmbedder

# Those of `transformers` that Keras computes, too. Of several names, the first
# is the one that is written.
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

# What has no equivalent here unless it is what BERT does.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_REFUSED = {
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": {},
}


def from_hugging_face(
    folder,
    task="text_embedder",
    special_tokens_in_strings=False,
    **overrides,
):
    """Makes a model of a folder in Hugging Face's format.

    BERT and what has its shape: MiniLM, BGE, E5, GTE and their like.

    Args:
        folder: the path of a folder with `config.json`, safetensors, a
            vocabulary (`tokenizer.json` or `vocab.txt`) and what
            sentence-transformers adds; or the name of a repository of the
            Hugging Face Hub, `owner/name`, whose JSON, text and safetensors
            files are downloaded into Hugging Face's cache.
        task: see `BertSource.build`.
        special_tokens_in_strings: bool. Whether special tokens in texts, such
            as `[SEP]` in `"title [SEP] abstract"`, become ids, as they do in
            `transformers` and sentence-transformers. The default takes them
            as text: with `True`, strangers' texts can end their own sequence.
        **overrides: what to take instead of what the folder says, or where
            it does not say: `lowercase`, `pooling_mode`, `normalize`,
            `sequence_length`, `prompts`. See `BertSource`.
            `truncation_side="right"` accepts a folder that truncates texts on
            the left.

    Returns:
        A `FixedHeadTextEmbedder`, `FixedHeadMaskedLM` or `FixedHeadBackbone`
        with the same outputs. Its dropout is `hidden_dropout_prob`.

    Raises:
        OSError: if a file is missing, or the download fails.
        ValueError: if the folder holds another architecture, another
            tokenizer or a damaged file, or does not say what the task needs;
            if a tensor is missing, not used, or of a shape that does not fit.

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


def read_hugging_face(folder, truncation_side=None, **overrides):
    """Reads a folder in Hugging Face's format; see `from_hugging_face`.

    Returns:
        A `BertSource`.
    """
    folder = local_folder(folder)
    encoder = transformer_folder(folder)
    config = _read_config(encoder / "config.json")
    tokenizer = read_tokenizer(
        encoder,
        overrides.get("lowercase"),
        overrides.get("special_tokens_in_strings", False),
        truncation_side,
    )
    found = read_sentence_transformer(
        folder, config["max_sequence_length"], tokenizer["lowercase"]
    )
    tensors, names, spell = read_weights(encoder)
    return BertSource(
        origin=str(encoder),
        config=config,
        tensors=tensors,
        source_names=names,
        spell=spell,
        **{**tokenizer, **found, **overrides},
    )


def to_hugging_face(model, folder):
    """Writes a model as a folder that `transformers` loads.

    An embedder's loads in sentence-transformers, too.

    Args:
        model: a `FixedHeadBackbone`, `FixedHeadTextEmbedder` or
            `FixedHeadMaskedLM` whose heads are as large together as its
            embedding.
        folder: the path of the folder to write, which must not exist.

    Raises:
        FileExistsError: if `folder` exists.
        ValueError: if BERT's format has no place for the model.
    """
    folder = pathlib.Path(folder)
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists. Choose another folder, or remove it"
        )
    backbone = getattr(model, "backbone", model)
    config = _written_config(model, backbone)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent
    ) as temporary:
        new = pathlib.Path(temporary, "new")
        new.mkdir()
        write_json(new / "config.json", config)
        write_weights(
            new / "model.safetensors",
            {
                name: keras.ops.convert_to_numpy(weight)
                for name, weight in named_weights(model).items()
            },
            prefix="bert." if isinstance(model, FixedHeadMaskedLM) else "",
        )
        preprocessor = getattr(model, "preprocessor", None)
        if preprocessor is not None:
            write_tokenizer(
                new, preprocessor.tokenizer, backbone.max_sequence_length
            )
        if isinstance(model, FixedHeadTextEmbedder):
            write_sentence_transformer(new, model)
        new.rename(folder)


def _read_config(path):
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}, so it is not a folder in "
            "Hugging Face's format"
        )
    config = read_json(path)
    if "registered_name" in config:
        raise ValueError(
            f"{path.parent} is a preset of KerasHub or of this library, not a "
            "folder in Hugging Face's format: load it with `from_preset`"
        )
    if config.get("model_type") != "bert":
        raise ValueError(
            f"{path} is of another architecture than BERT. Received: "
            f"model_type={config.get('model_type')!r}"
        )
    for name, value in {**_FIXED, **_REFUSED}.items():
        if config.get(name) not in (None, value):
            raise ValueError(
                f"{path} has {name}={config[name]!r}, of which there is no "
                f"equivalent here: it has to be {value!r}"
            )
    adapter = path.with_name("adapter_config.json")
    if adapter.exists():
        raise ValueError(
            f"{adapter} is of an adapter (LoRA or similar) to the weights "
            "beside it. Merge it into them with PEFT's `merge_and_unload`, "
            "save them, and convert that folder"
        )
    if "AutoModel" in read_field(config, "auto_map", dict, path, {}):
        raise ValueError(
            f"{path} names code of the model's own (auto_map), which may "
            "compute anything. Remove that where it is BERT's"
        )
    activation = read_field(config, "hidden_act", str, path, "gelu")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` in {path} must be one of "
            f"{', '.join(_ACTIVATIONS)}. Received: {activation!r}"
        )
    return {
        **read_sizes(config, path),
        "activation": _ACTIVATIONS[activation],
        "layer_norm_epsilon": read_field(
            config, "layer_norm_eps", float, path, 1e-12
        ),
    }


def _written_config(model, backbone):
    activations = {
        ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())
    }
    widths = {
        sum(layer.attention.head_sizes) for layer in backbone.transformer_layers
    }
    sizes = {
        size
        for layer in backbone.transformer_layers
        for size in layer.attention.head_sizes
    }
    for name, value, fits in (
        (
            "head_size",
            backbone.head_size,
            len(sizes) == 1 and widths == {backbone.hidden_dim},
        ),
        (
            "attention_window",
            backbone.attention_window,
            backbone.attention_window is None,
        ),
        (
            "attention_scale",
            backbone.attention_scale,
            backbone.attention_scale is None,
        ),
        ("causal", backbone.causal, not backbone.causal),
        (
            "activation",
            backbone.activation,
            backbone.activation in activations,
        ),
        (
            "embedding_dim",
            getattr(model, "embedding_dim", None),
            getattr(model, "embedding_dim", None) is None,
        ),
    ):
        if not fits:
            raise ValueError(
                f"Hugging Face's BERT has no place for this `{name}`. It "
                "takes heads of hidden_dim / num_heads, no attention window, "
                "scale or causal attention, "
                f"activations {', '.join(activations)} and whole embeddings. "
                f"Received: a model with {name}={value!r}, "
                f"num_heads={backbone.num_heads} and "
                f"hidden_dim={backbone.hidden_dim}"
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
            for ours, theirs in CONFIG_NAMES.items()
        },
        **_FIXED,
        "hidden_act": activations[backbone.activation],
        "hidden_dropout_prob": backbone.dropout,
        "attention_probs_dropout_prob": backbone.dropout,
        "layer_norm_eps": backbone.layer_norm_epsilon,
        "pad_token_id": pad,
        "torch_dtype": "float32",
    }
