"""The gate: checks an exported version by the loader that serves it.

`python -m export.verify DIR/N` runs `export.checks` in a child process, through
TensorFlow's C++ loader only. A check that crashes the child has failed.
"""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

import rich.console
import rich.table

from export import checks, cli

_ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check; `passed` is None if it was not run."""

    name: str
    passed: bool | None
    detail: str
    seconds: float = 0.0


def run_checks(
    folder: str | pathlib.Path,
    on_start: Callable[[str], None] = lambda what: None,
) -> list[Result]:
    """Runs every check on a version folder; tells `on_start` what begins."""
    results, names = [], list(checks.CHECKS)
    program = "from export import checks; checks.main()"
    folder = pathlib.Path(folder).resolve()
    command = [sys.executable, "-c", program, str(folder)]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            report = json.loads(line)
            doing = report.pop("doing")
            if report:
                results.append(Result(doing, **report))
            else:
                on_start(f"checking: {doing}")
        status = process.wait()
        if status and len(results) < len(names):
            log.seek(0)
            last = log.read().strip().rpartition("\n")[2]
            how = f"ended the process with status {status}: {last}"
            if status < 0:
                how = f"crashed the process ({signal.Signals(-status).name})"
            results.append(Result(names[len(results)], False, how))
    for name in names[len(results) :]:
        detail = f"not run: {results[-1].name} failed"
        results.append(Result(name, None, detail))
    return results


def print_table(results: Sequence[Result], folder: pathlib.Path) -> None:
    """Prints the results of `run_checks`."""
    marks = {
        True: "[green]passed",
        False: "[bold red]failed",
        None: "[yellow]not run",
    }
    table = rich.table.Table(title=f"{folder}", title_justify="left")
    table.add_column("check")
    table.add_column("result")
    table.add_column("detail", overflow="fold")
    table.add_column("seconds", justify="right")
    for result in results:
        detail = rich.markup.escape(result.detail)
        table.add_row(
            result.name, marks[result.passed], detail, f"{result.seconds:.2f}"
        )
    rich.console.Console().print(table)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Check an exported version folder; exit status 1 if a check fails."""

    folder: cli.Positional[pathlib.Path]
    """The version folder, such as models/encoder/1."""


def main(arguments: Arguments) -> int:
    if not arguments.folder.is_dir():
        raise ValueError(
            f"`folder` is not a folder, received {arguments.folder}. Pass a "
            "version folder that `python -m export.saved_model` wrote."
        )
    with rich.console.Console().status("checking") as status:
        results = run_checks(arguments.folder, status.update)
    print_table(results, arguments.folder)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(cli.run(main, Arguments))
