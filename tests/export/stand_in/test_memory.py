"""What a server keeps of the memory that requests have used."""

import platform
import subprocess
import sys

import pytest

# A thread, as one that answers, takes 50 MB and lets them go. It takes nothing
# of Python's between, which would lie at the end.
PROGRAM = """
import ctypes, threading, psutil
from export.stand_in import model

libc = ctypes.PyDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def answer():
    blocks = [None] * 500
    for i in range(500):
        blocks[i] = libc.malloc(100_000)
    for block in blocks:
        libc.memset(block, 1, 100_000)
    for block in blocks:
        libc.free(block)

def print_kept():
    print((psutil.Process().memory_info().rss - before) / 2**20)

model.start_memory()
with model.memory_for_loading():
    pass
before = psutil.Process().memory_info().rss
thread = threading.Thread(target=answer)
thread.start()
thread.join()
print_kept()
model.give_back_memory()
print_kept()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_gives_back_what_a_thread_has_used():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    freed, kept = map(float, done.stdout.split())
    assert freed > 40  # glibc keeps it
    assert kept < 10
