"""Embeds a corpus through a SavedModel or a server, and indexes it.

`export.search` reads the index folder that `python -m export.index` writes.
"""

import dataclasses
import pathlib
import sys
import time

import rich.console

from export import cli, messages, model_source
from export.index.manifest import SHARD_DOCUMENTS, Kind, Options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(Options, model_source.Source):
    """Embed a corpus and index it; continue where an earlier run ended.

    The embeddings stay in the folder (parts/*.parquet, 4 bytes a number, with
    identifiers and texts): another precision embeds nothing again, a changed
    corpus only the changed shards. One run at a time.
    """

    corpus: pathlib.Path
    """A file of one JSON object a line: `text`, optionally `title` and `_id`
    or `id` (default: the number of the line); or a BEIR folder."""

    output: pathlib.Path
    """The index folder."""

    shard_documents: int = SHARD_DOCUMENTS
    """Documents that are embedded and written together: what is in memory,
    what a killed run repeats, what a worker receives. Another value embeds the
    whole folder again."""

    bm25: bool = True
    """Make BM25, too, which export.search ranks by and fuses with the
    encoder. Unlike the embeddings it is made in memory, with about 3.5 kB for
    a document of 100 words."""

    kind: Kind = Kind.faiss
    """The library that searches the embeddings."""

    runner: str | None = None
    """Embed on the workers of this Apache Beam runner, such as FlinkRunner;
    all of them must see corpus, output and model under the same paths."""

    beam_options: tuple[str, ...] = ()
    """Options of the runner, such as flink_master=HOST:PORT."""


def main(arguments: Arguments) -> int:
    # `--help` need not wait for FAISS and Arrow.
    from export.index.index_folder import update

    console = rich.console.Console()
    with (
        arguments.base(model_source.Source).started() as source,
        source.open() as opened,
    ):
        started = time.monotonic()
        index, embedded = update(
            arguments.output,
            arguments.corpus,
            source,
            opened,
            arguments.base(Options),
            arguments.shard_documents,
            arguments.runner,
            arguments.beam_options,
            arguments.bm25,
            arguments.kind,
        )
        seconds = time.monotonic() - started
    kept = index.manifest["documents"] - embedded
    kept = f", {kept:,} kept from before" if kept else ""
    for line in (
        f"{index}",
        f"{embedded:,} embedded now in {seconds:.1f} s{kept}; "
        f"{index.manifest['index_bytes']:,} bytes of index, "
        f"{index.manifest['bm25_bytes']:,} of BM25",
        f"search it: python -m export.search --index {arguments.output}",
    ):
        console.print(line, highlight=False)
    return 0


if __name__ == "__main__":
    # The command needs no Keras, which takes seconds to import.
    messages.stub_package("keras_fixedhead")
    sys.exit(cli.run(main, Arguments))
