"""Faults planted in an export, in its graph or beside it.

A function that plants a fault takes the folder and a NumPy generator.
"""

import os
import shutil
import zipfile

import numpy as np
import tensorflow as tf

from export import messages
from export.files import card, digests, golden, warmup
from tests.export import graph_faults
from tests.export.graph_faults import SAVED_MODEL

DATA = "variables/variables.data-00000-of-00001"
INDEX = "variables/variables.index"


def flip(name, first=0.0):
    """Flips one bit of a file, past a fraction of its bytes."""

    def plant(folder, random):
        path = folder / name
        content = bytearray(path.read_bytes())
        place = random.integers(int(first * len(content)), len(content))
        content[place] ^= 1 << random.integers(8)
        path.write_bytes(content)

    return plant


def flip_in_archive(folder, random):
    """Flips one bit of the compressed arrays of the golden answers."""
    path = folder / golden.FILE
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        part = random.choice(archive.infolist())
    # The name and the extra field of `part` follow its header of 30 bytes.
    start = part.header_offset + 30 + len(part.filename) + 20
    place = start + random.integers(part.compress_size)
    content[place] ^= 1 << random.integers(8)
    path.write_bytes(content)


def edit_weights(edit):
    """Writes a sound checkpoint of other weights."""

    def plant(folder, random):
        prefix = str(folder / "variables" / "variables")
        reader = tf.train.load_checkpoint(prefix)
        tensors = {
            name: np.array(reader.get_tensor(name))
            for name in reader.get_variable_to_shape_map()
        }
        edit(tensors)
        names = sorted(tensors)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )

    return plant


def _weight(tensors, *shape):
    """The first weight of a shape, sizes as in `tiny`."""
    return next(x for _, x in sorted(tensors.items()) if x.shape == shape)


def swap_rows(tensors):
    table = _weight(tensors, 89, 13)
    table[[70, 71]] = table[[71, 70]]


def swap_positions(tensors):
    table = _weight(tensors, 37, 13)
    table[[33, 34]] = table[[34, 33]]


def add_to_weight(value):
    def edit(tensors):
        _weight(tensors, 13, 31)[3, 5] += value

    return edit_weights(edit)


def edit_card(**values):
    def plant(folder, random):
        described = {**card.load(folder), **values}
        kept = {k: v for k, v in described.items() if v is not None}
        card.save(folder, kept)

    return plant


def edit_golden(edit):
    def plant(folder, random):
        with np.load(folder / golden.FILE) as stored:
            arrays = dict(stored)
        edit(arrays)
        np.savez_compressed(folder / golden.FILE, **arrays)

    return plant


def drop_rows(arrays):
    for name in arrays:
        if name.startswith("from_token_ids/"):
            arrays[name] = arrays[name][:-1]


def repeat_row(arrays):
    for name in arrays:
        if name.startswith("serving_default/"):
            arrays[name][-1] = arrays[name][-2]


def drop_signature(arrays):
    for name in list(arrays):
        if name.startswith("query/"):
            del arrays[name]


def edit_warmup(edit):
    """Writes other warm-up requests, with right checksums."""

    def plant(folder, random):
        replayed = warmup.read(folder)
        edit(replayed)
        warmup.write(folder, replayed)

    return plant


def oversize(replayed):
    text = np.array([b"a"] * 33, object)
    replayed[0].inputs["text"].CopyFrom(messages.to_tensor_proto(text))


def garbage_record(folder, random):
    with tf.io.TFRecordWriter(str(folder / warmup.FILE)) as writer:
        writer.write(b"garbage")


def write(name, content=b"garbage"):
    def plant(folder, random):
        (folder / name).write_bytes(content)

    return plant


def truncate(name):
    def plant(folder, random):
        path = folder / name
        os.truncate(path, path.stat().st_size * 2 // 3)

    return plant


def remove(name):
    return lambda folder, random: (folder / name).unlink()


def make_folder(folder, random):
    (folder / "assets.extra/saved_model_config.pb").mkdir()


def link_file(folder, random):
    path = folder / "fingerprint.pb"
    shutil.move(path, folder.with_name("elsewhere"))
    path.symlink_to(folder.with_name("elsewhere"))


def make_pipe(folder, random):
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)


def chmod(name, mode):
    return lambda folder, random: (folder / name).chmod(mode)


def _flips(name, check, count, **options):
    return [
        (f"bit {i} of {name}", check, flip(name, **options))
        for i in range(count)
    ]


# Name, the check that finds it whatever the manifest says, and what plants it.
FAULTS = [
    *_flips(SAVED_MODEL, "graph", 9),
    # The names of the weights come first; nothing reads them to serve.
    *_flips(DATA, "load", 3, first=0.3),
    *_flips(INDEX, "load", 2),
    *_flips(warmup.FILE, "warm-up", 2),
    *_flips(card.FILE, "card", 2),
    *_flips("fingerprint.pb", "card", 1),
    *(
        (f"bit {i} of the golden answers", "golden answers", flip_in_archive)
        for i in range(2)
    ),
    *graph_faults.FAULTS,
    # Weights.
    ("swapped tokens", "golden answers", edit_weights(swap_rows)),
    ("swapped positions", "golden answers", edit_weights(swap_positions)),
    ("another weight", "weights", add_to_weight(1e-6)),
    ("NaN among the weights", "load", add_to_weight(np.nan)),
    (
        "more in the checkpoint",
        "weights stored once",
        edit_weights(
            lambda t: t.update(more=np.ones([9973], "float32")),
        ),
    ),
    ("half the weights", "load", truncate(DATA)),
    # The card, the golden answers and the warm-up.
    ("a card of bfloat16", "card", edit_card(dtype="bfloat16")),
    ("a card of more bytes", "card", edit_card(parameter_bytes=2**20)),
    ("a card of another run", "card", edit_card(run={"steps": 7})),
    ("a card without bytes", "card", edit_card(parameter_bytes=None)),
    (
        "a card of other tokens",
        "vocabulary",
        edit_card(vocabulary_sha256="0" * 64),
    ),
    ("a card that is a list", "card", write(card.FILE, b"[]")),
    ("a dropped row", "golden answers", edit_golden(drop_rows)),
    ("a repeated row", "golden answers", edit_golden(repeat_row)),
    ("a signature not asked", "signatures", edit_golden(drop_signature)),
    ("a warm-up too large", "warm-up", edit_warmup(oversize)),
    (
        "a warm-up of no signature",
        "warm-up",
        edit_warmup(lambda r: setattr(r[0].model_spec, "signature_name", "no")),
    ),
    ("a shorter warm-up", "warm-up", edit_warmup(lambda r: r.pop())),
    ("a garbled warm-up", "warm-up", garbage_record),
    # Files.
    ("half the graph", "signatures", truncate(SAVED_MODEL)),
    (
        "settings of the server",
        "files",
        write("assets.extra/saved_model_config.pb"),
    ),
    ("a second graph", "files", write("saved_model.pbtxt")),
    ("no warm-up", "files", remove(warmup.FILE)),
    ("a folder that no export has", "files", make_folder),
    ("a link to a file elsewhere", "files", link_file),
    ("a pipe", "files", make_pipe),
    ("a private file", "permissions", chmod(INDEX, 0o600)),
    ("a private folder", "permissions", chmod("variables", 0o700)),
]


def seal(folder):
    """Writes the manifest again, as one who plants a fault would."""
    mode = {p: p.stat().st_mode for p in (folder, *folder.rglob("*"))}
    digests.write_manifest(folder)
    for path, bits in mode.items():
        path.chmod(bits)
