"""An index folder brought up to date with its corpus."""

import dataclasses

import rich.console

from export.index import corpus, embedding, index_folder, manifest, parts
from export.index.options import SHARD_DOCUMENTS
from keras_fixedhead import beir, retrieval


def update(
    folder,
    corpus_path,
    source,
    opened,
    options,
    shard_documents=SHARD_DOCUMENTS,
    runner=None,
    beam_options=(),
    bm25=True,
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
        bm25: bool, whether the folder holds BM25, too.

    Returns:
        The `index_folder.Index`, and how many documents were embedded.

    Raises:
        OSError: if a file cannot be read or written, or a server is away.
        ValueError: if the corpus, the model or the options will not do.
    """
    path = corpus.find(corpus_path)
    if options is None:
        kept = manifest.read(folder) if folder.is_dir() else None
        options = index_folder.Options(**(kept["options"] if kept else {}))
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
    count = sum(shard.documents for shard in missing)
    if missing and options != index_folder.Options():
        # Better now than when all is embedded.
        first = corpus.read(path, shards[0])[1][:1]
        retrieval.check_index(
            sum(shard.documents for shard in shards),
            opened.embed(first, "document").shape[1],
            **dataclasses.asdict(options),
        )
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
        kept = sum(shard.documents for shard in shards) - count
        embedding.run(opened, path, missing, folder, kept)
    index_folder.complete(folder, path, opened.model, shards, options, bm25)
    index_folder.sweep(folder, everything=True)
    return index_folder.load(folder), count
