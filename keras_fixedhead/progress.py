"""Progress of long work: a bar on a terminal, else a line now and then."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.progress

_BETWEEN_LINES = 30  # seconds


class SpeedColumn(rich.progress.ProgressColumn):
    """How much is done per second."""

    def render(self, task: rich.progress.Task) -> str:
        speed = task.finished_speed or task.speed
        return "" if speed is None else f"{speed:,.0f}/s"


@contextlib.contextmanager
def progress(
    label: str | None,
    total: float,
    *columns: rich.progress.ProgressColumn,
    done: int = 0,
) -> Iterator[Callable[[float], None]]:
    """Shows progress on standard error, unless `label` is `None`.

    Yields a function to call with the amount of `total` just done. An earlier
    run has done `done` of it. `columns` are shown beside the default ones.
    """
    console = rich.console.Console(stderr=True, quiet=label is None)
    kept, started = done, time.monotonic()
    next_line = started + _BETWEEN_LINES
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        *columns,
        console=console,
        disable=not console.is_terminal or label is None,
    ) as bar:
        task = bar.add_task(label or "", total=total, completed=done)

        def advance(amount):
            nonlocal done, next_line
            bar.advance(task, amount)
            done += amount
            now = time.monotonic()
            if not console.is_terminal and now >= next_line and done > kept:
                next_line = now + _BETWEEN_LINES
                seconds = (now - started) / (done - kept)
                left = round(seconds * (total - done))
                console.out(
                    f"{label}: {done / total:.0%}  "
                    f"ETA {datetime.timedelta(seconds=left)}",
                    highlight=False,
                )

        yield advance
