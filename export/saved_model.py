"""Exports a model as a SavedModel that TensorFlow Serving takes.

`python -m export.saved_model --model MODEL --output DIR/NAME --version N`
writes DIR/NAME/N: texts in, answers out, the tokenizer in the graph.
"""

import dataclasses
import pathlib
import sys
import typing

import rich
import rich.console

from export import cli
from export.files import batching


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Export a model as a SavedModel for TensorFlow Serving.

    The version is checked by the gate (python -m export.verify) before it
    appears; exit status 1, and nothing published, if a check fails.
    """

    model: pathlib.Path
    """A preset folder, such as the one that training writes, or a .keras
    file."""

    output: pathlib.Path
    """The folder of versions: what TF Serving calls the model base path."""

    version: int | None = None
    """The number of the version; an existing one is never overwritten. One
    above the highest there is, if not given."""

    dtype: typing.Literal["float32", "bfloat16", "int8"] | None = None
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

    batching_parameters_file: pathlib.Path = batching.DEFAULT
    """The model server's: the warm-up has each of its allowed_batch_sizes."""


def main(arguments):
    """Exports and prints the gate's table; returns the exit status."""
    with rich.console.Console().status("importing TensorFlow") as status:
        # It takes seconds, which `--help` need not wait for.
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
