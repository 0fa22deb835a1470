"""Versions of one model: which are asked, loaded, tried again and let go.

What is expected is from TensorFlow Serving's `aspired_versions_manager_test.cc`
and `availability_preserving_policy_test.cc`, or from the sources they test.
"""

import platform
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from export import messages, session
from export.stand_in import model

STATES = messages.get_model_status_pb2.ModelVersionStatus.State
X = {"x": np.float32([1])}


@pytest.fixture
def folders(half_plus, tmp_path):
    """Paths by version; 1 and 2 hold models, 3 is empty."""
    shutil.copytree(half_plus, tmp_path, dirs_exist_ok=True)
    (tmp_path / "3").mkdir()
    return {number: tmp_path / str(number) for number in (1, 2, 3)}


@pytest.fixture
def served():
    made = model.Model("m", max_num_load_retries=1, load_retry_seconds=0.1)
    yield made
    made.close()


def serve(served, folders, *numbers):
    served.want({number: folders[number] for number in numbers})
    served.advance()


def states(served):
    return {n: STATES.Name(state) for n, (state, _) in served.states().items()}


def asked(served, number=None):
    with served.use(number) as (found, loaded):
        return found, float(loaded.run(X)["y"][0])


def test_a_version_in_use_is_unloaded_after_its_last_request(folders, served):
    serve(served, folders, 1)
    with served.use() as (number, loaded):
        assert number == 1
        with served.use(1):
            serve(served, folders, 2)
            assert states(served) == {2: "AVAILABLE", 1: "UNLOADING"}
        assert asked(served) == (2, 3.5)
        assert loaded.run(X)["y"] == 2.5
        with pytest.raises(session.StatusError, match=r"Specific\(m, 1\)"):
            asked(served, 1)
    assert states(served) == {2: "AVAILABLE", 1: "END"}


def test_versions_side_by_side(folders, served):
    serve(served, folders, 1, 2)
    assert states(served) == {2: "AVAILABLE", 1: "AVAILABLE"}
    assert asked(served) == (2, 3.5)
    assert asked(served, 1) == (1, 2.5)


def test_back_to_an_older_version(folders, served):
    for number, expected in ((2, 3.5), (1, 2.5), (2, 3.5)):
        serve(served, folders, number)
        assert asked(served) == (number, expected)
    assert states(served) == {2: "AVAILABLE", 1: "END"}


def test_without_a_wanted_version_nothing_is_served(folders, served):
    serve(served, folders, 1)
    serve(served, folders)
    assert states(served) == {1: "END"}
    with pytest.raises(session.StatusError, match=r"Latest\(m\)"):
        asked(served)


def test_an_old_version_answers_while_a_broken_one_is_tried(folders, served):
    serve(served, folders, 1)
    serve(served, folders, 3)
    assert states(served) == {3: "LOADING", 1: "AVAILABLE"}
    # As the model server: the error is told when there is no further try.
    assert served.states()[3][1] is None
    served.advance()
    assert states(served)[3] == "LOADING"
    time.sleep(0.1)
    serve(served, folders, 3)
    assert states(served) == {3: "END", 1: "AVAILABLE"}
    code = messages.error_codes_pb2.NOT_FOUND
    assert served.states()[3][1].code == code
    serve(served, folders, 3)  # not tried again
    assert states(served) == {3: "END", 1: "AVAILABLE"}
    assert asked(served) == (1, 2.5)


def test_a_version_repaired_in_time_is_loaded(folders, served):
    serve(served, folders, 1)
    serve(served, folders, 3)
    shutil.copytree(folders[2], folders[3], dirs_exist_ok=True)
    time.sleep(0.1)
    serve(served, folders, 3)
    assert states(served) == {3: "AVAILABLE", 1: "END"}
    assert asked(served) == (3, 3.5)


def test_a_version_repaired_too_late_is_loaded_after_a_break(folders, served):
    serve(served, folders, 3)
    time.sleep(0.1)
    serve(served, folders, 3)
    shutil.copytree(folders[2], folders[3], dirs_exist_ok=True)
    serve(served, folders, 3)
    assert states(served) == {3: "END"}
    serve(served, folders)
    serve(served, folders, 3)
    assert states(served) == {3: "AVAILABLE"}


def test_a_broken_version_gives_way_to_another(folders, served):
    serve(served, folders, 3)
    serve(served, folders, 2)
    assert states(served) == {3: "END", 2: "AVAILABLE"}


def test_a_failing_warmup_fails_the_load(folders, served):
    path = folders[2] / "assets.extra/tf_serving_warmup_requests"
    path.parent.mkdir()
    path.write_bytes(b"half a record")
    serve(served, folders, 1)
    serve(served, folders, 2)
    assert states(served) == {2: "LOADING", 1: "AVAILABLE"}
    path.unlink()
    time.sleep(0.1)
    serve(served, folders, 2)
    assert states(served) == {2: "AVAILABLE", 1: "END"}


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
