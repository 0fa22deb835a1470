"""Exports a model as a SavedModel for TensorFlow Serving.

`python -m export.saved_model --model MODEL --output DIR/NAME --version N`
writes DIR/NAME/N, which answers texts: the tokenizer is in the graph.
"""

import dataclasses
import pathlib
import sys
import typing

import rich
import rich.console

from export import cli
from export.files import warmup


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Export a model as a SavedModel for TensorFlow Serving.

    The gate (python -m export.verify) checks the version before it appears. If
    a check fails, nothing is published and the exit status is 1.
    """

    model: pathlib.Path
    """A preset folder, such as training writes, or a .keras file."""

    output: pathlib.Path
    """The folder of versions, TF Serving's model base path."""

    version: int | None = None
    """The number of the version, never overwritten. Default: one above the
    highest."""

    dtype: typing.Literal["float32", "bfloat16", "int8"] | None = None
    """What to compute in. bfloat16 halves the file and is fast on processors
    that support it; int8 quarters the file but is slower. The card states the
    least cosine to float32's answers."""

    embedding_dim: int | None = None
    """Serve only the first numbers of an embedding, normalized again."""

    raw_encoder: bool = False
    """Serve the encoder's tokens, without the task."""

    max_new_tokens: int | None = None
    """The most tokens that a language model adds to a text. Default: 64, or
    what its sequences have room for."""

    warmup_texts: pathlib.Path | None = None
    """A file with a text of real traffic on each line; the server answers
    batches of them before it takes requests."""

    batching_parameters_file: pathlib.Path = warmup.BATCHING_PARAMETERS
    """The model server's file; the warm-up has its allowed_batch_sizes."""


def main(arguments: Arguments) -> int:
    with rich.console.Console().status("importing TensorFlow") as status:
        # Imports TensorFlow, for which `--help` should not wait.
        from export import verify
        from export.files import card
        from export.publish import export

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
