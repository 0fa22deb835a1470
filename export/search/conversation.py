"""Queries asked for and answered in a terminal."""

import contextlib

import rich.markup

from export.search import query_file, report


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
