"""A model as a version that TensorFlow Serving takes: written and checked."""

import os
import pathlib
import shutil
import tempfile

import keras
import tensorflow as tf

from export import load, services, verify
from export.checks.exported import Exported
from export.files import (
    batching,
    card,
    digests,
    golden,
    manifest,
    versions,
    warmup,
)


class Weights(tf.Module):
    """What the SavedModel stores: the variables, and nothing of Keras.

    With the Keras model as an attribute the C++ loader does not find its
    variables, and Keras's own export stores them twice.
    """

    def __init__(self, weights):
        super().__init__()
        self.weights = [weight.value for weight in weights]


def write(folder, module, functions, cases, requests, description):
    """Writes a SavedModel with all its extra files; checks nothing.

    Args:
        folder: path of the folder to fill.
        module: `tf.Module` whose variables the functions use.
        functions: `{signature: tf.function}`, see `services.signatures`.
        cases: `{signature: golden.Case}`, see `services.golden_cases`.
        requests: list of `PredictRequest`, see `services.warmup_requests`.
        description: JSON-able dictionary, see `card.describe`; what was
            written is added to it.
    """
    tf.saved_model.save(module, str(folder), functions)
    description = {
        **description,
        "golden_sha256": digests.of_cases(cases),
        "warmup_sha256": digests.of_messages(requests),
        "saved_model_sha256": digests.of_saved_model(
            Exported(folder).saved_model
        ),
        "fingerprint_sha256": digests.of_file(folder / card.FINGERPRINT),
    }
    golden.save(folder, cases, digests.of_card(description))
    warmup.write(folder, requests)
    card.save(folder, description)
    manifest.write(folder)


def export(
    model,
    output,
    version=None,
    dtype=None,
    embedding_dim=None,
    raw_encoder=False,
    max_new_tokens=None,
    warmup_texts=None,
    batching_parameters_file=batching.DEFAULT,
    on_start=lambda what: None,
):
    """Writes, checks and publishes a version.

    The version appears under its number in one step, and only if every check
    of the gate passes: a model server that watches the folder never sees
    half of it.

    Args:
        model: path of a preset folder or a `.keras` file.
        output: path of the folder of versions, `DIR/NAME`.
        version: int, the number of the version; None for one above the
            highest there is.
        dtype: as in `load.load`.
        embedding_dim: as in `load.load`.
        raw_encoder: as in `load.load`.
        max_new_tokens: as in `load.load`.
        warmup_texts: path of a UTF-8 file, a text like those of real traffic
            on each line; None for the golden texts.
        batching_parameters_file: path of the model server's; the warm-up has
            its `allowed_batch_sizes`.
        on_start: function called with what begins, a str, for a display.

    Returns:
        The results of the gate (`verify.Result`), and the path of the
        published folder or None if a check failed.

    Raises:
        ValueError: if the version exists, or the backend, the version, the
            texts or the model will not do.
    """
    output = pathlib.Path(output).resolve()
    if version is None:
        version = 1 + max(versions.find(output), default=0)
    if version < 0:
        raise ValueError(f"`version` must not be negative, received {version}.")
    published = output / str(version)
    if published.exists():
        raise ValueError(
            f"`version` {version} exists in {output} and is never overwritten. "
            "Pass a higher number."
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`KERAS_BACKEND` must be tensorflow to export, received "
            f"{keras.backend.backend()}."
        )
    sizes = batching.sizes(batching_parameters_file)
    texts = golden.TEXTS
    if warmup_texts is not None:
        texts = warmup.read_texts(warmup_texts)
    on_start("loading the model")
    options = {
        "embedding_dim": embedding_dim,
        "raw_encoder": raw_encoder,
        "max_new_tokens": max_new_tokens,
    }
    service = load.load(model, dtype, **options)
    description = {**card.describe(service, model), "batch_sizes": sizes}
    if dtype not in (None, "float32"):
        on_start("comparing with float32")
        reference = load.load(model, "float32", **options)
        cosine = services.least_cosine(service, reference)
        description["least_cosine_to_float32"] = cosine
        del reference
    make_readable_folder(output)
    # Not a number, so a model server passes it by.
    staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{version}-", dir=output))
    try:
        cases = services.golden_cases(service, on_start)
        on_start("writing the SavedModel")
        write(
            staging,
            Weights(service.model.weights),
            services.signatures(service),
            cases,
            services.warmup_requests(service, texts, sizes),
            description,
        )
        results = verify.run_checks(staging, on_start)
        if not all(result.passed for result in results):
            return results, None
        os.rename(staging, published)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return results, published


def make_readable_folder(folder):
    """Makes a folder that every user may read, whatever the umask."""
    if not folder.is_dir():
        make_readable_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(folder.stat().st_mode | 0o555)
