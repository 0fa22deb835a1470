"""Preparing text by Beam, in other processes: it warns of missing packages."""

import json
import subprocess
import sys

import pytest

from tests.training import tiny, workers
from tests.training.prepare.verb import ROOT, command, documents_of
from training.corpus.tokenized import read_corpus

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


@pytest.mark.slow
@pytest.mark.parametrize("runner", [None, "DirectRunner"])
def test_lines_that_are_documents(tmp_path, vocabulary, runner):
    lines = ["the cat runs.", "cats", "the dog.", "the cat runs.", "a cat."]
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.tokens").write_text("\n".join([*lines, "", ""]))
        lines = lines[::2]
    output = tmp_path / "data"
    flags = {
        "source": tmp_path / "train.tokens",
        "heldout_source": tmp_path / "heldout.tokens",
        "vocabulary": vocabulary,
        "output": output,
    }
    if runner:
        flags["beam"] = f"runner={runner}"
    subprocess.run(
        command("--lines_are_documents", **flags), cwd=ROOT, check=True
    )
    corpus = read_corpus(output)
    for shards, documents, words in (
        (corpus.train, 5, 11),
        (corpus.heldout, 3, 7),
    ):
        assert len(documents_of(shards)) == documents
        assert sum(shard.words for shard in shards) == words
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["arguments"]["lines_are_documents"] is True


@pytest.mark.slow
def test_beam_makes_the_same_documents(made, tmp_path):
    expected, flags = made
    output = tmp_path / "data"
    subprocess.run(
        command(output=output, beam="runner=DirectRunner", **flags),
        cwd=ROOT,
        check=True,
    )
    manifests = [
        json.loads((folder / "manifest.json").read_text())
        for folder in (expected, output)
    ]
    for name in ("counts", "left_out", "vocabulary_sha256", "versions"):
        assert manifests[0][name] == manifests[1][name]
    corpora = [read_corpus(folder) for folder in (expected, output)]
    for split in ("train", "heldout"):
        shards, beams = (getattr(corpus, split) for corpus in corpora)
        assert 1 < len(beams) < len(shards)
        assert sorted(documents_of(beams)) == sorted(documents_of(shards))
    assert list(tmp_path.iterdir()) == [output]
