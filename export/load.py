"""A trained model from its files: a preset folder, or a `.keras` file."""

import json
import pathlib
import tempfile

import keras
import keras_hub

import keras_fixedhead
from export import services
from keras_fixedhead.files import loading

DTYPES = ("float32", "bfloat16", "int8")
# The kind of model that has an option.
_OWNERS = {
    "embedding_dim": keras_fixedhead.FixedHeadTextEmbedder,
    "max_new_tokens": keras_fixedhead.FixedHeadCausalLM,
}


def load(
    model,
    dtype=None,
    embedding_dim=None,
    raw_encoder=False,
    max_new_tokens=None,
):
    """Loads a model to export.

    Args:
        model: path of a preset folder or of a `.keras` file.
        dtype: `"float32"` or `"bfloat16"` to compute and store in that, or
            `"int8"` to store the kernels so; `None` for the default policy,
            or what a `.keras` file says.
        embedding_dim: int, the numbers of an embedding to keep; `None` for
            the model's own.
        raw_encoder: bool, whether to leave the task out and serve the
            encoder's outputs.
        max_new_tokens: int, how many tokens a language model adds to a text
            at most; `None` for the default of `services.causal_lm`.

    Returns:
        A `services.Service`.

    Raises:
        ValueError: if there is no model, it is of a class that is not
            served, it has no tokenizer or one whose sequences are too long
            for it, it has no embedding to cut, or it adds no tokens, or not
            so many.
    """
    model = pathlib.Path(model)
    if dtype not in (None, *DTYPES):
        raise ValueError(
            f"`dtype` must be one of {', '.join(DTYPES)}, received {dtype}."
        )
    if (model / "config.json").is_file():
        options = {"embedding_dim": embedding_dim}
        if dtype != "int8":
            options["dtype"] = dtype
        loaded, preprocessor = _from_preset(model, raw_encoder, options)
    elif model.suffix == ".keras" and model.is_file():
        if dtype in (None, "int8") and embedding_dim is None:
            loaded, preprocessor = _from_keras_file(model, raw_encoder)
        else:
            return _by_way_of_a_preset(
                model, dtype, embedding_dim, raw_encoder, max_new_tokens
            )
    else:
        raise ValueError(
            f"`model` must be a preset folder or a .keras file, received "
            f"{model}, which is neither (a preset folder has a config.json). "
            "Training writes a preset folder, and `save_to_preset`."
        )
    if preprocessor is None:
        raise ValueError(
            f"`model` {model} has no tokenizer. Save a task with its "
            "preprocessor, or the preprocessor into the preset folder of the "
            "encoder, so that it can be exported with it."
        )
    _check_lengths(model, loaded, preprocessor)
    serving = {}
    if max_new_tokens is not None:
        serving["max_new_tokens"] = max_new_tokens
    _check_options(type(loaded), serving)
    service = services.of(loaded, preprocessor, **serving)
    if dtype == "int8" and not _is_quantized(loaded):
        # Keras warns of every layer that has no such method of its own.
        service.backbone.quantize(
            "int8",
            filters=lambda layer: (
                type(layer).quantize is not keras.Layer.quantize
            ),
        )
    return service


def _check_lengths(path, model, preprocessor):
    longest = getattr(model, "backbone", model).max_sequence_length
    if preprocessor.sequence_length > longest:
        raise ValueError(
            f"`model` {path} has a preprocessor that makes sequences of up to "
            f"{preprocessor.sequence_length} tokens, and an encoder that takes "
            f"{longest}. Give it a preprocessor with `sequence_length="
            f"{longest}` and save it again."
        )


def _is_quantized(model):
    return any(weight.dtype == "int8" for weight in model.weights)


def _registered_class(file):
    name = json.loads(file.read_text(encoding="utf-8"))["registered_name"]
    return keras.saving.get_registered_object(name) or name


def _from_preset(folder, raw_encoder, options):
    """Returns the model and the preprocessor of a preset folder."""
    has_task = (folder / "task.json").is_file() and not raw_encoder
    options = {name: v for name, v in options.items() if v is not None}
    with loading(folder, "model"):
        cls = _registered_class(
            folder / ("task.json" if has_task else "config.json")
        )
        _check_class(cls, folder)
        _check_options(cls, options)
        model = cls.from_preset(str(folder), **options)
        if has_task:
            return model, model.preprocessor
        return model, _preprocessor(folder, model)


def _preprocessor(folder, backbone):
    """Returns the preprocessor of a preset folder, None without one."""
    file = folder / "preprocessor.json"
    cls = keras_fixedhead.FixedHeadTextEmbedderPreprocessor
    if file.is_file() and _registered_class(file) is cls:
        return cls.from_preset(str(folder))
    # That of a pre-trained encoder masks tokens.
    if not (folder / "tokenizer.json").is_file():
        return None
    return cls(
        keras_fixedhead.FixedHeadTokenizer.from_preset(str(folder)),
        sequence_length=backbone.max_sequence_length,
    )


def _from_keras_file(file, raw_encoder):
    """Returns the model and the preprocessor of a `.keras` file."""
    with loading(file, "model"):
        loaded = keras.saving.load_model(file, compile=False)
    _check_class(type(loaded), file)
    preprocessor = getattr(loaded, "preprocessor", None)
    if raw_encoder and isinstance(loaded, keras_hub.models.Task):
        return loaded.backbone, _of_texts(preprocessor, loaded.backbone)
    return loaded, preprocessor


def _of_texts(preprocessor, backbone):
    """Returns an encoder's preprocessor, made of that of a task."""
    cls = keras_fixedhead.FixedHeadTextEmbedderPreprocessor
    if preprocessor is None or isinstance(preprocessor, cls):
        return preprocessor
    return cls(
        preprocessor.tokenizer, sequence_length=backbone.max_sequence_length
    )


def _by_way_of_a_preset(
    file, dtype, embedding_dim, raw_encoder, max_new_tokens
):
    """Loads a `.keras` file whose configuration is to be another."""
    loaded, _ = _from_keras_file(file, raw_encoder=False)
    if _is_quantized(loaded):
        raise ValueError(
            f"`model` {file} is quantized to int8: its `dtype` and "
            "`embedding_dim` cannot be changed any more. Pass the model it "
            "was made from."
        )
    with tempfile.TemporaryDirectory() as folder:
        loaded.save_to_preset(folder)
        del loaded
        return load(folder, dtype, embedding_dim, raw_encoder, max_new_tokens)


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
