"""Embeds a corpus through a SavedModel or a server, and indexes it.

`python -m export.index --corpus corpus.jsonl --output DIR --saved_model
MODELS/NAME` writes an index folder that `export.search` reads. The same
command continues a run that was interrupted.
"""

import dataclasses
import pathlib
import sys
import time

import rich.console

from export import cli, corpus, embedding, encoder, index_folder, parts

SHARD_DOCUMENTS = 16_384


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(index_folder.Options, encoder.Source):
    """Embed a corpus and index it; continue where an earlier run ended.

    The embeddings stay in the folder (parts/*.parquet, 4 bytes a number, with
    identifiers and texts), so that another precision, or a corpus of which a
    part has changed, embeds no more than it must. One run at a time.
    """

    corpus: pathlib.Path
    """A file of one JSON object a line: `text`, and if there are any `title`
    and `_id` or `id` (else the number of the line); or a BEIR folder."""

    output: pathlib.Path
    """The index folder."""

    shard_documents: int = SHARD_DOCUMENTS
    """Documents that are embedded and written together: what is in memory,
    what a killed run does again, what a worker is given. It stays as it is
    for a folder, or all is embedded again."""

    runner: str | None = None
    """Embed on the workers of this Apache Beam runner, such as FlinkRunner;
    all of them must see corpus, output and model under the same paths."""

    beam_options: tuple[str, ...] = ()
    """Options of the runner, such as flink_master=HOST:PORT."""


def update(
    folder,
    corpus_path,
    source,
    opened,
    options,
    shard_documents=SHARD_DOCUMENTS,
    runner=None,
    beam_options=(),
):
    """Brings an index folder up to date with its corpus.

    Args:
        folder: `pathlib.Path` of the index folder; it may be absent.
        corpus_path: path of the corpus, see `corpus.find`.
        source: the `encoder.Source`, with its server running.
        opened: the `encoder.Encoder` that it has opened.
        options: the `index_folder.Options`; None for those that the folder
            has, or the default ones.
        shard_documents: int, the most documents of a shard.
        runner: str, the Beam runner; None to embed in this process.
        beam_options: list of str, its options.

    Returns:
        The `index_folder.Index`, and how many documents were embedded.

    Raises:
        OSError: if a file cannot be read or written, or a server is away.
        ValueError: if the corpus, the model or the options will not do.
    """
    path = corpus.find(corpus_path)
    if options is None:
        kept = index_folder.read_manifest(folder) if folder.is_dir() else None
        options = index_folder.Options(**(kept["options"] if kept else {}))
    console = rich.console.Console(stderr=True)
    with console.status("reading the corpus"):
        shards = corpus.plan(path, shard_documents)
    (folder / parts.FOLDER).mkdir(parents=True, exist_ok=True)
    index_folder.sweep(folder)
    missing = embedding.missing(opened, shards, folder)
    count = sum(shard.documents for shard in missing)
    if runner is not None and missing:
        from export import beam

        console.print(f"{runner} embeds {count:,} documents")
        beam.run(
            source.pinned(opened.model),
            path.resolve(),
            missing,
            folder.resolve(),
            opened.model,
            runner,
            beam_options,
        )
    elif missing:
        kept = sum(shard.documents for shard in shards) - count
        embedding.run(opened, path, missing, folder, kept)
    index_folder.complete(folder, path, opened.model, shards, options)
    index_folder.sweep(folder, everything=True)
    return index_folder.load(folder), count


def main(arguments):
    """Embeds and indexes; returns the exit status."""
    console = rich.console.Console()
    with (
        arguments.base(encoder.Source).started() as source,
        source.open() as opened,
    ):
        started = time.monotonic()
        index, embedded = update(
            arguments.output,
            arguments.corpus,
            source,
            opened,
            arguments.base(index_folder.Options),
            arguments.shard_documents,
            arguments.runner,
            arguments.beam_options,
        )
        seconds = time.monotonic() - started
    console.print(f"{index}", highlight=False)
    kept = index.manifest["documents"] - embedded
    console.print(
        f"{embedded:,} embedded now in {seconds:.1f} s"
        + (f", {kept:,} kept from before" if kept else "")
        + f"; {index.manifest['index_bytes']:,} bytes of index",
        highlight=False,
    )
    console.print(
        f"search it: python -m export.search --index {arguments.output}",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
