"""The verb `training.prepare stream`: the tokens of a text as arrays."""

import json

import numpy as np

from tests.training import tiny
from tests.training.prepare.command import prepare
from training.corpus.folder import read_stream


def test_a_stream_has_every_document_once(tmp_path):
    text = tiny.write_text(tmp_path / "text")
    assert prepare("stream", data=text, output=tmp_path / "stream") == 0
    stream = read_stream(tmp_path / "stream")
    manifest = json.loads((text / "manifest.json").read_text())
    tokens = {
        split: sum(shard["tokens"] for shard in shards)
        for split, shards in manifest["shards"].items()
    }
    start, end = (tiny.VOCABULARY.index(t) for t in ("[CLS]", "[SEP]"))
    for splits, source, documents in (
        (["train"], "train", 20),
        (["tuning", "test"], "heldout", 10),
    ):
        arrays = [np.asarray(stream.splits[split]) for split in splits]
        assert sum(map(len, arrays)) == tokens[source] + 2 * documents
        for array in arrays:
            starts = np.flatnonzero(array == start)
            ends = np.flatnonzero(array == end)
            assert len(starts) == documents // len(splits)
            np.testing.assert_array_equal(starts[1:], ends[:-1] + 1)
    assert stream.vocabulary_size == len(tiny.VOCABULARY)


def test_a_stream_is_made_of_text_with_held_out_documents(tmp_path, capfd):
    assert prepare("stream", data=tmp_path, output=tmp_path / "stream") == 1
    assert "manifest.json" in capfd.readouterr().err
    text = tiny.write_text(tmp_path / "text")
    tiny.rewrite(text, shards={"train": [], "heldout": []})
    assert prepare("stream", data=text, output=tmp_path / "stream") == 1
    assert "two held-out documents" in capfd.readouterr().err
