"""Searches a collection by a served encoder, beside BM25 and their fusion.

`python -m export.search --collection BEIR --server grpc://HOST:PORT
--model_name NAME --output DIR` embeds the documents through the server,
indexes them, answers every judged query and measures; with `--query "..."` it
answers that query instead.
"""

import contextlib
import dataclasses
import pathlib
import sys

import rich.console
import tyro

from export import cli, client, index, local_server, report
from keras_fixedhead import beir, retrieval
from keras_fixedhead.files import write_json

# Lists are fused deeper than they are read, see `reciprocal_rank_fusion`.
_DEPTH = 100


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Search a BEIR folder by a served encoder, and measure it.

    Writes metrics.json, retrieval.png and the index to the output folder.
    """

    collection: pathlib.Path
    """A BEIR folder: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""

    model_name: str
    """The model's name on the server."""

    output: pathlib.Path
    """Folder for the figures, and for the index, which a later call with the
    same documents and model version uses again."""

    server: str | None = None
    """A running server: grpc://HOST:PORT or http://HOST:PORT."""

    serve: pathlib.Path | None = None
    """Instead of --server: a folder of versions to serve while this runs."""

    query: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A query to answer instead of measuring; may be given several times."""

    k: int = 10
    """Hits shown per --query."""

    split: str = "test"
    """The name of the judgements, qrels/SPLIT.tsv."""

    batch_size: int = 32
    """Texts per request; a server that batches refuses more than its
    max_batch_size."""


@contextlib.contextmanager
def _server_url(arguments):
    """Gives the URL of the server to ask, started here if need be."""
    if (arguments.server is None) == (arguments.serve is None):
        raise ValueError(
            "Pass either `server`, the URL of a running server, or `serve`, a "
            f"folder of versions; received server={arguments.server}, "
            f"serve={arguments.serve}."
        )
    if arguments.server is not None:
        yield arguments.server
        return
    with local_server.running(arguments.model_name, arguments.serve) as started:
        yield started.grpc_url


def rank(connection, documents, found, batch_size):
    """Answers every query of a collection three ways.

    Args:
        connection: a `client.Client`.
        documents: the FAISS index of the collection.
        found: the `Collection`.
        batch_size: int, texts per request.

    Returns:
        `{system: Ranking}` for the encoder, BM25 and their fusion.
    """
    embeddings = index.embed(
        connection, found.queries, "query", batch_size, "queries"
    )
    encoder = retrieval.search_index(documents, embeddings, _DEPTH)
    bm25 = retrieval.bm25(found.documents, found.queries, _DEPTH)
    fusion = retrieval.reciprocal_rank_fusion([encoder, bm25], _DEPTH)
    return {"encoder": encoder, "bm25": bm25, "fusion": fusion}


def evaluate(connection, documents, found, arguments):
    """Measures the three ways and shows and writes what came out."""
    rankings = rank(connection, documents, found, arguments.batch_size)
    figures = report.measure(rankings, found.relevant)
    title = (
        f"{len(found.queries):,} queries over {len(found.documents):,} "
        f"documents, {arguments.model_name} version {connection.version()}"
    )
    report.print_examples(rankings, found)
    report.print_figures(figures, title)
    report.draw(
        arguments.output / "retrieval.png",
        figures,
        rankings,
        found.relevant,
        title,
    )
    write_json(
        arguments.output / "metrics.json",
        {
            "queries": len(found.queries),
            "documents": len(found.documents),
            "served_requests": connection.requests,
            "model_version": connection.version(),
            **figures,
        },
    )


def main(arguments):
    """Searches; returns the exit status."""
    console = rich.console.Console()
    found = beir.read_collection(arguments.collection, arguments.split)
    if not found.queries and not arguments.query:
        raise ValueError(
            f"`split` {arguments.split} judges no document relevant; there is "
            "nothing to measure."
        )
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (
        _server_url(arguments) as url,
        client.connect(url, arguments.model_name) as connection,
    ):
        version = connection.version()
        console.print(f"{arguments.model_name} version {version} at {url}")
        documents, kept = index.build_or_read(
            arguments.output, connection, found, arguments.batch_size
        )
        console.print(
            f"{documents.ntotal:,} documents "
            + (
                f"in the index kept in {arguments.output}, used again"
                if kept
                else f"embedded and indexed in {arguments.output}"
            )
        )
        for query in arguments.query:
            embedding = connection.embed([query], "query")
            ranking = retrieval.search_index(documents, embedding, arguments.k)
            report.print_hits(query, ranking, found)
        if not arguments.query:
            evaluate(connection, documents, found, arguments)
            console.print(
                f"{connection.requests} requests served; figures and picture "
                f"in {arguments.output}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
