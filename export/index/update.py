"""An index folder brought up to date with its corpus."""

import os
import pathlib
from collections.abc import Sequence

import rich.console
from rich.progress import MofNCompleteColumn

from export.encoder import Encoder, Source
from export.index import corpus, embedding, faiss_index, index_folder, parts
from export.index.manifest import SHARD_DOCUMENTS, Options, read
from keras_fixedhead import beir
from keras_fixedhead.progress import SpeedColumn, progress


def update(
    folder: pathlib.Path,
    corpus_path: str | os.PathLike,
    source: Source | None,
    opened: Encoder,
    options: Options | None,
    shard_documents: int = SHARD_DOCUMENTS,
    runner: str | None = None,
    beam_options: Sequence[str] = (),
    bm25: bool = True,
) -> tuple[index_folder.Index, int]:
    """Returns the index of a corpus, and how many documents were embedded.

    The folder may be absent. `opened` is the encoder of `source`, which the
    workers of a Beam `runner` open themselves. Options of None are those of the
    folder, or the default ones. `beam_options` are `NAME=VALUE`.
    """
    path = corpus.find(corpus_path)
    if options is None:
        kept = read(folder) if folder.is_dir() else None
        options = Options(**(kept["options"] if kept else {}))
    console = rich.console.Console(stderr=True)
    with console.status("reading the corpus"):
        shards, blank = corpus.plan(path, shard_documents)
    if blank:
        console.print(
            f"{path.name} is indexed {beir.count_blank(blank)}",
            highlight=False,
            markup=False,
        )
    (folder / parts.FOLDER).mkdir(parents=True, exist_ok=True)
    index_folder.sweep(folder)
    missing = embedding.missing(opened, shards, folder)
    total = sum(shard.documents for shard in shards)
    count = sum(shard.documents for shard in missing)
    if missing and options != Options():
        # Fails before all is embedded.
        first = corpus.read(path, shards[0])[1][:1]
        size = opened.embed(first, "document").shape[1]
        faiss_index.check(total, size, options)
    if runner is not None and missing:
        from export.index import beam

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
        with progress(
            "documents",
            total,
            MofNCompleteColumn(),
            SpeedColumn(),
            done=total - count,
        ) as advance:
            for shard in missing:
                embedding.embed_shard(opened, path, shard, folder, advance)
    index_folder.complete(
        folder, path.name, opened.model, shards, options, bm25
    )
    index_folder.sweep(folder, everything=True)
    return index_folder.load(folder), count
