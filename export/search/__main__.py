"""Searches an index: by a query, in a conversation, or for a file of queries.

`python -m export.search --collection BEIR --output DIR` embeds and indexes a
collection, answers every judged query, and measures.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import typing

import rich.console
import tyro

from export import cli, messages, model_source

_STANDARD_OUTPUT = pathlib.Path("-")
_DEFAULT = "fusion"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(model_source.Source):
    """Search an index, or measure a collection.

    Without --query, --queries and --collection it asks for queries. The model
    must be that of the index, which also has its name.
    """

    ranker: typing.Literal["encoder", "bm25", "fusion"] | None = None
    """How to rank documents. encoder: the inner product of embeddings. bm25:
    shared words (English stop words and stems), without a model. fusion, the
    default: the reciprocal ranks of both. It has the best mean nDCG@10 on six
    collections; BM25 alone is better where queries repeat the words of
    documents. --collection measures all three by default."""

    index: pathlib.Path | None = None
    """The folder that export.index has written. By default --collection makes
    one in index/ of the output."""

    query: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A query to answer; may be repeated."""

    queries: str | None = None
    """A file of queries, one JSON object a line: `query` (or `text`) and,
    optionally, `id` (or `_id`); - is standard input."""

    output: pathlib.Path | None = None
    """With --queries the file of answers, one JSON object a line; - is
    standard output. The exit status is 1 if an answer is an `error`. With
    --collection the folder of metrics.json and retrieval.png."""

    k: int = 10
    """The most hits of a query."""

    texts: bool = False
    """Write the texts of hits to the file of answers, too."""

    collection: pathlib.Path | None = None
    """A BEIR folder to measure: corpus.jsonl, queries.jsonl,
    qrels/SPLIT.tsv."""

    split: str = "test"
    """The name of its judgements, qrels/SPLIT.tsv."""


def _check(arguments):
    given = [
        name
        for name in ("query", "queries", "collection")
        if getattr(arguments, name) not in (None, ())
    ]
    if len(given) > 1:
        raise ValueError(
            f"Pass one of `query`, `queries` and `collection`, received "
            f"{' and '.join(given)}."
        )
    if arguments.index is None and given != ["collection"]:
        raise ValueError("`index` must be the folder that export.index wrote.")
    takes_output = given in (["queries"], ["collection"])
    if takes_output != (arguments.output is not None) or (
        given == ["collection"] and arguments.output == _STANDARD_OUTPUT
    ):
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


def _search(opened, index, arguments, console):
    """Answers queries from an index; returns the exit status."""
    from export.search import answers

    ranker = arguments.ranker or _DEFAULT
    for query in arguments.query:
        answers.check(query)

    def ask(queries):
        return answers.answer(index, opened, queries, arguments.k, ranker)

    if arguments.queries is not None:
        failed = answers.answer_file(
            arguments.queries, arguments.output, ask, arguments.texts
        )
        if failed:
            noun = "query has" if failed == 1 else "queries have"
            console.print(f"{failed:,} {noun} an error for an answer")
        return 1 if failed else 0
    console.print(f"{index}; ranked by {ranker}", highlight=False)
    for query in arguments.query:
        answers.print_hits(query, ask([query])[0], console)
    if not arguments.query:
        answers.converse(ask, console)
    return 0


def main(arguments: Arguments) -> int:
    _check(arguments)
    # `--help` need not wait for FAISS and Arrow.
    from export.index import index_folder
    from export.search.measure import measure_collection

    console = rich.console.Console(stderr=arguments.output == _STANDARD_OUTPUT)
    source = arguments.base(model_source.Source)
    if arguments.collection is not None:
        measure_collection(
            source,
            arguments.collection,
            arguments.split,
            arguments.output,  # type: ignore[arg-type]  # see _check
            arguments.index,
            arguments.ranker,
        )
        return 0
    index = index_folder.load(arguments.index)  # type: ignore[arg-type]
    if arguments.ranker != "encoder":
        index.bm25  # noqa: B018  raises where there is none
    if source.saved_model is None and source.model_name is None:
        source = dataclasses.replace(source, model_name=index.model.name)
    if arguments.queries is None and source.threads is None:
        # Each query by itself uses all processors.
        source = dataclasses.replace(source, threads=1)
    with contextlib.ExitStack() as stack:
        opened = None
        if arguments.ranker != "bm25":
            opened = stack.enter_context(
                stack.enter_context(source.started()).open()
            )
            index.check(opened)
        try:
            return _search(opened, index, arguments, console)
        except BrokenPipeError:
            # The reader of the answers closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1


if __name__ == "__main__":
    # The command needs no Keras, which takes seconds to import.
    messages.stub_package("keras_fixedhead")
    sys.exit(cli.run(main, Arguments))
