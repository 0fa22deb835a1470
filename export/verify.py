"""The gate: checks an exported version by the loader that serves it.

`python -m export.verify DIR/N` runs every check of `export/checks` in a child
process, through TensorFlow's C++ loader only. If a check crashes the child, it
has failed, and the rest runs in the next child.
"""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence

import rich.console
import rich.table

from export import checks, cli
from export.files import digests

_ROOT = pathlib.Path(__file__).parents[1]
_CHILD_SECONDS = 3600  # a large model answers for its whole vocabulary


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check; `passed` is None if it was not run."""

    name: str
    passed: bool | None
    detail: str
    seconds: float = 0.0


def _end(process, log):
    """Describes how a child ended before it finished its checks."""
    if process.returncode == -signal.SIGKILL:
        return f"killed, or not finished in {_CHILD_SECONDS} s"
    if process.returncode < 0:
        how = signal.Signals(-process.returncode).name
        return f"crashed the process ({how})"
    log.seek(0)
    last = log.read().strip().rpartition("\n")[2]
    return f"ended the process with status {process.returncode}: {last}"


def _run_child(folder, names, on_start):
    """Runs checks in one child; returns their results, as far as it got."""
    results, started = [], time.monotonic()
    program = "from export import checks; checks.main()"
    command = [sys.executable, "-c", program, str(folder), *names]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        timer = threading.Timer(_CHILD_SECONDS, process.kill)
        timer.start()
        for line in process.stdout:
            report = json.loads(line)
            doing = report.pop("doing")
            if "passed" in report:
                seconds = time.monotonic() - started
                results.append(Result(**report, seconds=seconds))
            elif doing:
                on_start(f"checking: {report['name']}, {doing}")
            else:
                started = time.monotonic()
                on_start(f"checking: {report['name']}")
        process.wait()
        timer.cancel()
        if len(results) < len(names):
            running = names[len(results)]
            results.append(Result(running, False, _end(process, log)))
    return results


def run_checks(
    folder: str | pathlib.Path,
    on_start: Callable[[str], None] = lambda what: None,
) -> list[Result]:
    """Runs every check on a version folder; tells `on_start` what begins."""
    folder = pathlib.Path(folder).resolve()
    names = list(checks.CHECKS)
    results: list[Result] = []
    if irregular := digests.irregular(folder):
        # Other checks might wait for a pipe forever.
        detail = f"{', '.join(irregular)} must be a plain file or folder"
        return [Result("files", False, detail)]
    while len(results) < len(names):
        results += _run_child(folder, names[len(results) :], on_start)
        if any(r.name == "load" and not r.passed for r in results):
            results = results[: names.index("load") + 1]
            results += [
                Result(name, None, "not run: the model does not load")
                for name in checks.RUNNING
            ]
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
