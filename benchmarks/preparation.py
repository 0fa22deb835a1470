"""How long does `training.prepare` take, and in how much memory?

    python -m benchmarks.preparation text --source novels --output runs/data

Takes the arguments of `python -m training.prepare`. Prints its seconds and the
most memory that its processes had at a time, shared pages counted once
(proportional set sizes, ten times a second; Linux).
"""

import contextlib
import sys
import time

import psutil


def main(args: list[str]) -> int:
    begun = time.monotonic()
    run = psutil.Popen([sys.executable, "-m", "training.prepare", *args])
    peak = 0
    while run.poll() is None:
        with contextlib.suppress(psutil.Error):  # one has just ended
            processes = [run, *run.children(recursive=True)]
            sizes = [each.memory_full_info().pss for each in processes]
            peak = max(peak, sum(sizes))
        time.sleep(0.1)
    seconds = time.monotonic() - begun
    print(f"{seconds:.0f} s, {peak / 2**30:.2f} GiB at most")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
