"""Command lines of the verb, and what it writes."""

import pathlib
import sys

import tensorflow as tf

ROOT = pathlib.Path(__file__).parents[3]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def flags_of(*args, **flags):
    """The words of a command line."""
    words = [*map(str, args)]
    for name, value in flags.items():
        words += [f"--{name}", str(value)]
    return words


def command(*args, **flags):
    """The command line of a process of its own."""
    module = [sys.executable, "-m", "training.prepare"]
    return [*module, "text", *flags_of(*args, **flags)]


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def documents_of(shards):
    """The lines of ids of the documents, in order."""
    found = []
    paths = [str(shard.path) for shard in shards]
    for record in tf.data.TFRecordDataset(paths).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        ids = iter(features["token_ids"].int64_list.value)
        lengths = features["line_lengths"].int64_list.value
        found.append([[next(ids) for _ in range(n)] for n in lengths])
        assert not list(ids)
    return found
