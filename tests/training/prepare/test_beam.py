"""Preparing text: what it holds in memory, and what it does not do again."""

import concurrent.futures
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import types

import pytest

from tests.training import tiny, workers
from training.prepare import shards, text
from training.prepare.configs import TextConfig
from training.prepare.sources import Sample


def test_reading_waits_for_writing(tmp_path, monkeypatch):
    num_workers = 3
    # A unit for each worker and one that waits, beside them the document that
    # begins the next one, and the one that showed that it does not end it.
    bound = num_workers + 2
    lock, full = threading.Lock(), threading.Event()
    ahead, written = [], []

    def documents(tally):
        for number in range(97):
            with lock:
                ahead.append(number + 1 - len(written))
            if ahead[-1] == bound:
                full.set()
            yield "train", b"document %d" % number

    def write(work, name, documents, lowercase):
        # So slow that who does not wait is far ahead.
        assert full.wait(timeout=30)
        time.sleep(0.005)
        with lock:
            written.append(name)

    @contextlib.contextmanager
    def pool(workers):
        with concurrent.futures.ThreadPoolExecutor(workers) as threads:
            yield threads

    monkeypatch.setattr(text, "worker_pool", pool)
    monkeypatch.setattr(shards, "write_part", write)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "vocabulary.txt").touch()
    text.tokenize(
        TextConfig(
            output=tmp_path,
            source=(),
            shard_megabytes=1e-6,
            workers=num_workers,
        ),
        types.SimpleNamespace(documents=documents, num_bytes=0),
        tmp_path,
    )
    assert sorted(written) == [f"train-{n:05}" for n in range(97)]
    assert max(ahead) == bound


def test_sample_stays_small():
    draw = random.Random(3)
    documents = [draw.randbytes(draw.randint(1, 31)) for _ in range(499)]
    sample = Sample(1009, seed=5)
    sizes = []
    for document in documents:
        sample.add(document)
        sizes.append(sum(map(len, sample.documents())))
    assert max(sizes) <= 1009
    # And full, but for less than the document put out last.
    assert min(sizes[200:]) > 1009 - 31
    # One alone may be longer.
    sample = Sample(7, seed=5)
    for document in [b"a document", b"another document", b"the third one"]:
        sample.add(document)
        assert len(sample.documents()) == 1


_BEAM_TWICE = """
import json, pathlib, sys
from training.prepare.beam import tokenize
from training.prepare.configs import TextConfig
from training.prepare.sources import Sources, find_sources

folder = pathlib.Path(sys.argv[1])
work = folder / "work"
sources = Sources(find_sources([str(folder / "a.txt")], None), [], 0.0, 0)
config = TextConfig(
    output=folder / "data",
    source=(),
    shard_megabytes=0.0003,
    beam=("runner=DirectRunner",),
)
for run in range(2):
    tokenize(config, sources, work)
    files = sorted(work.glob("*/train-*"))
    print(json.dumps({f.name: f.stat().st_mtime_ns for f in files}))
    if run == 0:
        (work / "parts" / "train-00001.json").unlink()
"""


@pytest.mark.slow
def test_beam_writes_what_is_missing(tmp_path):
    lines = [f"{word} cat {other}" for word in tiny.WORDS for other in "abcd"]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    for name in ("data", "parts"):
        (tmp_path / "work" / name).mkdir(parents=True)
    vocabulary = "".join(f"{token}\n" for token in tiny.VOCABULARY)
    (tmp_path / "work" / "data" / "vocabulary.txt").write_text(vocabulary)
    # In a process of its own: Beam warns of what is not installed.
    done = subprocess.run(
        [sys.executable, "-c", _BEAM_TWICE, str(tmp_path)],
        cwd=workers.ROOT,
        env=workers.ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    before, after = map(json.loads, done.stdout.splitlines())
    assert before.keys() == after.keys()
    assert len(before) > 6
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        name for name in before if name.startswith("train-00001.")
    }
