"""What commands print while they work."""

import re
import sys

from keras_fixedhead import progress
from training.engine import cli


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
