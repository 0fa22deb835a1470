"""What a training run shows: on a terminal, and where there is none."""

import contextlib
import os
import pty
import re
import sys
import threading

import pytest

from keras_fixedhead import progress
from tests.training import tiny
from training import finetune
from training.engine import cli


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_pairs(tmp_path_factory.mktemp("data"))


@contextlib.contextmanager
def terminal(monkeypatch):
    """Makes the output a terminal of 80 columns; what it got comes in a list.

    It has been read when the block is left.
    """
    ours, theirs = pty.openpty()
    written = []

    def read():
        parts = []
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                parts.append(part)
        written.append(b"".join(parts))

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patched:
        patched.setenv("TERM", "xterm")
        patched.setenv("COLUMNS", "80")
        with open(theirs, "w", encoding="utf-8") as output:
            patched.setattr(sys, "stdout", output)
            patched.setattr(sys, "stderr", output)
            yield written
    reader.join()
    os.close(ours)


def test_a_terminal_shows_a_bar_and_each_line_once(data, tmp_path, monkeypatch):
    args = tiny.flags(tiny.retrieval(data, tmp_path), "demo_retrieval")
    with terminal(monkeypatch) as written:
        assert finetune.main(args) == 0
    shown = written[0].decode()
    # Without colors and movements of the cursor.
    lines = re.split(r"\r?\n|\r", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown))
    assert "6/6" in shown and "examples/s" in shown and "0:00:0" in shown
    # Orbit's log and its dictionaries of what is in the bar.
    for orbit in ("train |", "eval |", "learning_rate", "{", "restored"):
        assert not [line for line in lines if orbit in line], shown
    said = [line.strip() for line in lines if not line.startswith("step ━")]
    said = [line for line in said if line and "/6 " not in line]
    assert len(said) == len(set(said)), shown
    starts = [
        f"reading {data}",
        "warning: 1 of 37 pairs are left out",
        "model: ",
        "evaluating at step 0",
        "step 0 of 6: ",
        "compiling the first update",
        "step 3 of 6: ",
        "step 6 of 6: ",
        "wrote ",
    ]
    assert len(said) == len(starts), shown
    for line, start in zip(said, starts):
        assert line.startswith(start), shown


def test_a_slow_import_is_said(monkeypatch, capsys):
    cli.import_tensorflow()
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: None)
    cli.import_tensorflow()
    assert capsys.readouterr().err == "importing TensorFlow\n"


def test_long_work_without_a_terminal_prints_now_and_then(monkeypatch, capfd):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0)
    with progress.progress("Embedding", 8) as advance:
        advance(2)
        advance(6)
    lines = capfd.readouterr().err.splitlines()
    assert [re.sub(r"\d+:\d\d:\d\d", "T", line) for line in lines] == [
        "Embedding: 25%  ETA T",
        "Embedding: 100%  ETA T",
    ]
    with progress.progress(None, 8) as advance:
        advance(8)
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 30)
    with progress.progress("Embedding", 0) as advance:
        advance(0)
    assert capfd.readouterr() == ("", "")


def test_the_rate_of_work_leaves_out_an_earlier_run(monkeypatch, capfd):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0)
    times = iter([0, 10])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times, 10))
    with progress.progress("Embedding", 8, done=4) as advance:
        advance(1)
    assert capfd.readouterr().err == "Embedding: 62%  ETA 0:00:30\n"
