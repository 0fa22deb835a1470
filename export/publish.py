"""A model as a version that TensorFlow Serving takes: written and checked."""

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from google.protobuf.message import Message

from export import files, load, services, verify
from export.files import card, golden, warmup


def write(
    folder: pathlib.Path,
    weights: Sequence[keras.Variable],
    functions: dict[str, Callable],
    cases: dict[str, golden.Case],
    requests: Sequence[Message],
    description: dict,
) -> None:
    """Writes a SavedModel with all its extra files; checks nothing."""
    # With the Keras model in the module, the C++ loader does not find its
    # variables, and Keras's own export stores them twice.
    module = tf.Module()
    module.weights = [weight.value for weight in weights]
    tf.saved_model.save(module, str(folder), functions)
    golden.save(folder, cases)
    warmup.write(folder, requests)
    card.save(folder, description)
    files.write_manifest(folder)


def export(
    model: str | pathlib.Path,
    output: str | pathlib.Path,
    version: int | None = None,
    dtype: str | None = None,
    warmup_texts: str | pathlib.Path | None = None,
    batching_parameters_file: str | pathlib.Path = warmup.BATCHING_PARAMETERS,
    on_start: Callable[[str], None] = lambda what: None,
    **options: Any,
) -> tuple[list[verify.Result], pathlib.Path | None]:
    """Writes, checks and publishes a version in the folder of versions.

    The version appears in one step, and only if every check passes. Returns the
    results, and the published folder, None if a check failed. The arguments are
    those of `saved_model.Arguments`; `on_start` is called with what begins.
    """
    output = pathlib.Path(output).resolve()
    if version is None:
        version = 1 + max(files.find_versions(output), default=0)
    published = output / str(version)
    if version < 0 or published.exists():
        raise ValueError(
            f"`version` {version} must be a number that {output} does not have."
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`KERAS_BACKEND` must be tensorflow to export, received "
            f"{keras.backend.backend()}."
        )
    sizes = warmup.read_batch_sizes(batching_parameters_file)
    texts = list(golden.TEXTS)
    if warmup_texts is not None:
        texts = warmup.read_texts(warmup_texts)
    on_start("loading the model")
    service = load.load(model, dtype, **options)
    description = {**card.describe(service, model), "batch_sizes": sizes}
    if dtype not in (None, "float32"):
        on_start("comparing with float32")
        reference = load.load(model, "float32", **options)
        cosine = services.least_cosine(service, reference)
        description["least_cosine_to_float32"] = cosine
        del reference
    make_readable_folder(output)
    # A model server ignores a folder whose name is not a number.
    staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{version}-", dir=output))
    try:
        cases = services.golden_cases(service, on_start)
        on_start("writing the SavedModel")
        write(
            staging,
            service.model.weights,
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


def make_readable_folder(folder: pathlib.Path) -> None:
    """Makes a folder that every user may read, whatever the umask."""
    if not folder.is_dir():
        make_readable_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(folder.stat().st_mode | 0o555)
