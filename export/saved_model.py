"""Exports a model as a SavedModel that TensorFlow Serving takes.

`python -m export.saved_model --model MODEL --output DIR/NAME --version N`
writes DIR/NAME/N: texts in, answers out, the tokenizer in the graph; and the
model server's configuration beside it.
"""

import dataclasses
import os
import pathlib
import shutil
import sys
import tempfile
import typing

import keras
import rich
import rich.console
import tensorflow as tf

from export import cli, load, services, verify
from export.files import card, golden, server_config, versions, warmup


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
        cases: golden requests and answers, see `services.golden_cases`.
        requests: list of `PredictRequest`, see `warmup.requests`.
        description: JSON-able dictionary, see `card.describe`.
    """
    tf.saved_model.save(module, str(folder), functions)
    golden.save(folder, cases)
    warmup.write(folder, requests)
    card.save(folder, description)


def export(
    model,
    output,
    version=None,
    dtype=None,
    embedding_dim=None,
    raw_encoder=False,
    max_new_tokens=None,
    warmup_texts=None,
    on_start=lambda what: None,
):
    """Writes, checks and publishes a version.

    The version appears under its number in one step, and only if every check
    of the gate passes: a model server that watches the folder never sees
    half of it. The server's configuration is written beside the versions
    where it is missing.

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
    description = card.describe(service, model)
    if dtype not in (None, "float32"):
        on_start("comparing with float32")
        reference = load.load(model, "float32", **options)
        cosine = services.least_cosine(service, reference)
        description["least_cosine_to_float32"] = cosine
        del reference
    output.mkdir(parents=True, exist_ok=True)
    server_config.write(output)
    # Not a number, so a model server passes it by.
    staging = pathlib.Path(tempfile.mkdtemp(prefix=f".{version}-", dir=output))
    on_start("writing the SavedModel")
    try:
        write(
            staging,
            Weights(service.model.weights),
            services.signatures(service),
            services.golden_cases(service),
            services.warmup_requests(
                service, texts, server_config.batch_sizes(output)
            ),
            description,
        )
        staging.chmod(0o755)  # mkdtemp's is for its owner alone
        results = verify.run_checks(staging, on_start)
        if not all(result.passed for result in results):
            return results, None
        os.rename(staging, published)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return results, published


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Export a model as a SavedModel for TensorFlow Serving.

    The version is checked by the gate (python -m export.verify) before it
    appears; exit status 1, and nothing published, if a check fails. Beside
    the versions stand batching_parameters.txt, models.config and
    monitoring.config, which are yours to edit: they are written once.
    """

    model: pathlib.Path
    """A preset folder, such as the one that training writes, or a .keras
    file."""

    output: pathlib.Path
    """The folder of versions: what TF Serving calls the model base path."""

    version: int | None = None
    """The number of the version; an existing one is never overwritten. One
    above the highest there is, if not given."""

    dtype: typing.Literal[load.DTYPES] | None = None
    """What to compute in: bfloat16 is half the file and fast where the
    processor has it. int8 is a quarter of the file, but slower. The least
    cosine to float32's answers goes on the card."""

    embedding_dim: int | None = None
    """Serve the first numbers of an embedding alone, normalized again."""

    raw_encoder: bool = False
    """Leave the task out and serve the encoder's tokens."""

    max_new_tokens: int | None = None
    """How many tokens a language model adds to a text at most; 64, or what
    its sequences have room for, if not given."""

    warmup_texts: pathlib.Path | None = None
    """A file with a text of real traffic on each line: the server answers
    batches of them before it takes requests."""


def main(arguments):
    """Exports and prints the gate's table; returns the exit status."""
    with rich.console.Console().status("starting") as status:
        results, published = export(**vars(arguments), on_start=status.update)
    verify.print_table(results, published or arguments.output)
    if published is None:
        rich.print("[bold red]not published:[/] a check failed")
        return 1
    cosine = card.load(published).get("least_cosine_to_float32")
    if cosine is not None:
        rich.print(f"least cosine to float32's answers: {cosine:.4f}")
    rich.print(f"published {published}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
