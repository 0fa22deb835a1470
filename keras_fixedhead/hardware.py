"""What the machine is, for records and documents."""

import os
import pathlib
import platform
import re


def processor() -> str:
    """Returns the usable cores and the processor: `2 cores of NAME`."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        cores = len(os.sched_getaffinity(0))
        cpus = pathlib.Path("/proc/cpuinfo").read_text("utf-8")
        found = re.search(r"^model name\s*: (.*)", cpus, re.MULTILINE)
        name = found[1] if found else platform.machine()
    else:
        cores, name = os.cpu_count() or 1, platform.machine()
    return f"{cores} core{'s' * (cores > 1)} of {name}"
