"""How far a long run is: a bar on terminals, else a line now and then."""

import contextlib
import time

import rich.console
import rich.progress

_BETWEEN_LINES = 30  # seconds


class _Speed(rich.progress.ProgressColumn):
    def render(self, task):
        speed = task.finished_speed or task.speed
        return "" if speed is None else f"{speed:,.0f}/s"


@contextlib.contextmanager
def documents(label, total, kept=0):
    """Shows on standard error how many documents are done.

    Args:
        label: str, what is done with them.
        total: int, how many there are.
        kept: int, how many an earlier run has done.

    Yields:
        A function to call with the number of further ones.
    """
    console = rich.console.Console(stderr=True)
    done, started = kept, time.monotonic()
    next_line = started + _BETWEEN_LINES
    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        _Speed(),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(label, total=total, completed=kept)

        def advance(count):
            nonlocal done, next_line
            done += count
            progress.advance(task, count)
            now = time.monotonic()
            if not console.is_terminal and now > next_line:
                next_line = now + _BETWEEN_LINES
                console.print(
                    f"{label}: {done:,} of {total:,}, "
                    f"{(done - kept) / (now - started):,.0f} per second"
                )

        yield advance
