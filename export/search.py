"""Searches an index: by a query, in a conversation, or for a file of queries.

`python -m export.search --index DIR --saved_model MODELS/NAME` asks for
queries, `--query "..."` answers one, `--queries FILE --output FILE` many.
`--collection BEIR --output DIR` embeds and indexes a collection, answers every
judged query, and measures the encoder beside BM25 and their fusion.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys

import rich.console
import rich.markup
import tyro

from export import (
    cli,
    encoder,
    index,
    index_folder,
    progress,
    query_file,
    report,
)
from keras_fixedhead import beir, retrieval
from keras_fixedhead.files import write_json

# Lists are fused deeper than they are read, see `reciprocal_rank_fusion`.
_DEPTH = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(encoder.Source):
    """Search an index, or measure a collection.

    Without --query, --queries and --collection it asks for queries. The model
    has to be the one of the index; its name is taken from there.
    """

    index: pathlib.Path | None = None
    """The folder that export.index has written. With --collection it is made
    here, by default in index/ of the output."""

    query: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A query to answer; may be given several times."""

    queries: str | None = None
    """A file of queries, one JSON object a line, `query` (or `text`) and, if
    there is one, `id` (or `_id`); - is standard input."""

    output: pathlib.Path | None = None
    """With --queries the file of answers, one JSON object a line; - is
    standard output. Exit status 1 if a line has `error` for an answer. With
    --collection the folder of metrics.json and retrieval.png."""

    k: int = 10
    """Hits of a query."""

    texts: bool = False
    """Write the texts of the hits, too, to the file of answers."""

    collection: pathlib.Path | None = None
    """A BEIR folder to measure: corpus.jsonl, queries.jsonl,
    qrels/SPLIT.tsv."""

    split: str = "test"
    """The name of its judgements, qrels/SPLIT.tsv."""


def _check(arguments):
    asked = {
        "query": bool(arguments.query),
        "queries": arguments.queries is not None,
        "collection": arguments.collection is not None,
    }
    given = [name for name, is_given in asked.items() if is_given]
    if len(given) > 1:
        raise ValueError(
            f"Pass one of `query`, `queries` and `collection`, received "
            f"{' and '.join(given)}."
        )
    if arguments.index is None and not asked["collection"]:
        raise ValueError(
            "`index` must be the folder that `python -m export.index` has "
            "written."
        )
    takes_output = asked["queries"] or asked["collection"]
    if takes_output != (arguments.output is not None):
        raise ValueError(
            "`output` belongs to `queries` (a file, - for standard output) "
            "and to `collection` (a folder); received "
            f"output={arguments.output}, {', '.join(given) or 'neither'}."
        )
    if not given and not sys.stdin.isatty():
        raise ValueError(
            "There is no query: pass `query`, or `queries` (- for standard "
            "input), or start this in a terminal, where it asks for them."
        )
    if arguments.k < 1:
        raise ValueError(f"`k` must be positive, not {arguments.k}.")
    for query in arguments.query:
        problem = query_file.problem(query)
        if problem:
            shown = query.encode(errors="replace").decode()
            raise ValueError(f"`query` {shown!r} {problem}.")


def rank(opened, vectors, found):
    """Answers every query of a collection three ways.

    Args:
        opened: an `encoder.Encoder`.
        vectors: the FAISS index of the collection.
        found: the `Collection`.

    Returns:
        `{system: Ranking}` for the encoder, BM25 and their fusion.
    """
    with progress.documents("queries", len(found.queries)) as advance:
        embeddings = opened.embed(found.queries, "query", advance)
    by_encoder = retrieval.search_index(vectors, embeddings, _DEPTH)
    bm25 = retrieval.bm25(found.documents, found.queries, _DEPTH)
    fusion = retrieval.reciprocal_rank_fusion([by_encoder, bm25], _DEPTH)
    return {"encoder": by_encoder, "bm25": bm25, "fusion": fusion}


def measure(source, arguments, console):
    """Measures the three ways and shows and writes what came out."""
    found = beir.read_collection(arguments.collection, arguments.split)
    if not found.queries:
        raise ValueError(
            f"`split` {arguments.split} judges no document relevant; there is "
            "nothing to measure."
        )
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    with source.open() as opened:
        made, embedded = index.update(
            arguments.index or output / "index",
            arguments.collection,
            source,
            opened,
            None,
        )
        console.print(f"{made}, {embedded:,} of them embedded now")
        rankings = rank(opened, made.vectors, found)
    figures = report.measure(rankings, found.relevant)
    title = (
        f"{len(found.queries):,} queries over {len(found.documents):,} "
        f"documents, {opened.model}"
    )
    report.print_examples(rankings, found)
    report.print_figures(figures, title)
    report.draw(
        output / "retrieval.png", figures, rankings, found.relevant, title
    )
    write_json(
        output / "metrics.json",
        {
            "queries": len(found.queries),
            "documents": len(found.documents),
            "requests": opened.requests,
            "model_version": opened.model.version,
            **figures,
        },
    )
    console.print(
        f"{opened.requests:,} requests answered by {opened.model}; figures "
        f"and picture in {output}"
    )
    return 0


def answer(opened, searched, queries, k):
    """Finds the documents of queries.

    Args:
        opened: the `encoder.Encoder` of the index.
        searched: an `index_folder.Index`.
        queries: list of Q texts, each without a `query_file.problem`.
        k: int, the most hits of a query.

    Returns:
        A list of Q lists of `report.Hit`s, best first.
    """
    ranking = retrieval.search_index(
        searched.vectors, opened.embed(queries, "query"), k
    )
    return [
        [
            report.Hit(number, *searched.documents[row], float(score))
            for number, (row, score) in enumerate(zip(rows, scores), 1)
            if row >= 0
        ]
        for rows, scores in zip(ranking.documents, ranking.scores)
    ]


def converse(ask, console):
    """Asks for queries and answers them, until `:q` or Ctrl-D.

    Args:
        ask: function of a list of queries to their lists of hits.
        console: a `rich.console.Console`.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  the arrow keys and a history
    console.print("Ctrl-D or :q ends", style="dim")
    while True:
        try:
            query = input("query> ")
            if query.strip() == ":q":
                return
            if not query.strip():
                continue
            problem = query_file.problem(query)
            if problem:
                raise ValueError(f"the query {problem}")
            report.print_hits(query, ask([query])[0], console)
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print()
        # A server that is away now may be back at the next query.
        except (ValueError, OSError) as error:
            message = rich.markup.escape(str(error))
            console.print(f"[red]error:[/] {message}")


def search(opened, searched, arguments, console):
    """Answers queries from an index; returns the exit status."""

    def ask(queries):
        return answer(opened, searched, queries, arguments.k)

    if arguments.queries is not None:
        failed = query_file.answer(
            arguments.queries, arguments.output, ask, arguments.texts
        )
        if failed:
            noun = "query has" if failed == 1 else "queries have"
            console.print(f"{failed:,} {noun} an error for an answer")
        return 1 if failed else 0
    console.print(f"{searched}", highlight=False)
    for query in arguments.query:
        report.print_hits(query, ask([query])[0], console)
    if not arguments.query:
        converse(ask, console)
    return 0


def main(arguments):
    """Searches; returns the exit status."""
    _check(arguments)
    to_stdout = arguments.output == pathlib.Path("-")
    console = rich.console.Console(stderr=to_stdout)
    source = arguments.base(encoder.Source)
    if arguments.collection is not None:
        with source.started() as started:
            return measure(started, arguments, console)
    searched = index_folder.load(arguments.index)
    if source.saved_model is None and source.model_name is None:
        source = dataclasses.replace(source, model_name=searched.model.name)
    if arguments.queries is None and source.threads is None:
        # One query at a time: all processors for it.
        source = dataclasses.replace(source, threads=1)
    with source.started() as started, started.open() as opened:
        searched.check(opened)
        try:
            return search(opened, searched, arguments, console)
        except BrokenPipeError:
            # Who reads the answers has had enough of them.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
