"""A trained model from its files: a preset folder, or a `.keras` file."""

import json
import pathlib
import tempfile

import keras
import keras_hub

import keras_fixedhead
from export import services
from keras_fixedhead import (
    FixedHeadTextEmbedderPreprocessor as TextPreprocessor,
)
from keras_fixedhead.files import loading

# The only kind of model that has an option.
_OWNERS = {
    "embedding_dim": keras_fixedhead.FixedHeadTextEmbedder,
    "max_new_tokens": keras_fixedhead.FixedHeadCausalLM,
}


def load(
    model: str | pathlib.Path,
    dtype: str | None = None,
    embedding_dim: int | None = None,
    raw_encoder: bool = False,
    max_new_tokens: int | None = None,
) -> services.Service:
    """Loads a model to export, by the options of `saved_model.Arguments`.

    `dtype` None is the default policy, and that of a `.keras` file.
    """
    model = pathlib.Path(model)
    options: dict[str, int | str] = {}
    if embedding_dim is not None:
        options["embedding_dim"] = embedding_dim
    if dtype is not None and dtype != "int8":
        options["dtype"] = dtype
    if (model / "config.json").is_file():
        loaded, preprocessor = _from_preset(model, raw_encoder, options)
    elif model.suffix == ".keras" and model.is_file():
        with loading(model, "model"):
            loaded = keras.saving.load_model(model, compile=False)
        _check_class(type(loaded), model)
        if options:
            # A preset can be loaded in another configuration.
            if any(weight.dtype == "int8" for weight in loaded.weights):
                raise ValueError(
                    f"`model` {model} is quantized to int8, so its `dtype` and "
                    "`embedding_dim` cannot be changed."
                )
            with tempfile.TemporaryDirectory() as folder:
                loaded.save_to_preset(folder)
                del loaded
                return load(
                    folder, dtype, embedding_dim, raw_encoder, max_new_tokens
                )
        preprocessor = getattr(loaded, "preprocessor", None)
        if raw_encoder and isinstance(loaded, keras_hub.models.Task):
            loaded = loaded.backbone
            if preprocessor and not isinstance(preprocessor, TextPreprocessor):
                tokenizer = preprocessor.tokenizer
                preprocessor = _text_preprocessor(tokenizer, loaded)
    else:
        raise ValueError(
            f"`model` must be a preset folder or a .keras file, received "
            f"{model} (a preset folder has a config.json)."
        )
    if preprocessor is None:
        raise ValueError(
            f"`model` {model} has no tokenizer. Save a task with its "
            "preprocessor, or an encoder's into its preset folder."
        )
    longest = getattr(loaded, "backbone", loaded).max_sequence_length
    if preprocessor.sequence_length > longest:
        raise ValueError(
            f"`model` {model} has a preprocessor that makes sequences of up to "
            f"{preprocessor.sequence_length} tokens, and an encoder that takes "
            f"{longest}. Save it with a shorter `sequence_length`."
        )
    serving = {}
    if max_new_tokens is not None:
        serving["max_new_tokens"] = max_new_tokens
    _check_options(type(loaded), serving)
    service = services.of(loaded, preprocessor, **serving)
    if dtype == "int8" and service.dtype != dtype:

        def has_int8(layer):  # Keras warns about the others
            return type(layer).quantize is not keras.Layer.quantize

        service.backbone.quantize("int8", filters=has_int8)
    return service


def _registered_class(file):
    name = json.loads(file.read_text(encoding="utf-8"))["registered_name"]
    return keras.saving.get_registered_object(name) or name


def _from_preset(folder, raw_encoder, options):
    """Returns the model and the preprocessor of a preset folder, or None."""
    has_task = (folder / "task.json").is_file() and not raw_encoder
    with loading(folder, "model"):
        cls = _registered_class(
            folder / ("task.json" if has_task else "config.json")
        )
        _check_class(cls, folder)
        _check_options(cls, options)
        model = cls.from_preset(str(folder), **options)
        if has_task:
            return model, model.preprocessor
        file = folder / "preprocessor.json"
        if file.is_file() and _registered_class(file) is TextPreprocessor:
            return model, TextPreprocessor.from_preset(str(folder))
        # The preprocessor of a pre-trained encoder masks tokens.
        if not (folder / "tokenizer.json").is_file():
            return model, None
        tokenizer = keras_fixedhead.FixedHeadTokenizer.from_preset(str(folder))
        return model, _text_preprocessor(tokenizer, model)


def _text_preprocessor(tokenizer, backbone):
    return TextPreprocessor(
        tokenizer, sequence_length=backbone.max_sequence_length
    )


def _check_class(cls, model):
    if cls not in services.SERVICES:
        known = ", ".join(known.__name__ for known in services.SERVICES)
        raise ValueError(
            f"`model` must be one of {known}, received {model}, a "
            f"{getattr(cls, '__name__', cls)}. The encoder in a preset of "
            "another task is exported with --raw_encoder."
        )


def _check_options(cls, options):
    for name, owner in _OWNERS.items():
        if name in options and cls is not owner:
            raise ValueError(
                f"`{name}` is for a {owner.__name__}, received "
                f"{options[name]} for a {cls.__name__}."
            )
