"""How long does `training.prepare` take, and in how much memory?

    python -m benchmarks.preparation text --source novels --output runs/data

Takes the arguments of `python -m training.prepare`. Prints its seconds and the
most memory that its processes had at a time, shared pages counted once
(proportional set sizes, ten times a second; Linux).
"""

import sys
import time

import psutil

_INTERVAL = 0.1  # seconds


def main(args: list[str]) -> int:
    begun = time.monotonic()
    run = psutil.Popen([sys.executable, "-m", "training.prepare", *args])
    peak = 0
    while run.poll() is None:
        peak = max(peak, _memory(run))
        time.sleep(_INTERVAL)
    seconds = time.monotonic() - begun
    print(f"{seconds:.0f} s, {peak / 2**30:.2f} GiB at most")
    return run.returncode


def _memory(run):
    try:
        processes = [run, *run.children(recursive=True)]
        return sum(each.memory_full_info().pss for each in processes)
    except psutil.Error:  # one has just ended
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
