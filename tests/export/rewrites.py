"""Rewrites of an export that do no harm.

Each takes the folder and a NumPy generator.
"""

import json
import os
import shutil

import numpy as np

from export import messages
from export.files import card, golden, warmup
from tests.export.faults import SAVED_MODEL, edit_weights


def rewrite_graph(edit=lambda graph, random: None, deterministic=True):
    def rewrite(folder, random):
        path = folder / SAVED_MODEL
        saved = messages.saved_model_pb2.SavedModel.FromString(
            path.read_bytes()
        )
        edit(saved.meta_graphs[0], random)
        path.write_bytes(saved.SerializeToString(deterministic=deterministic))

    return rewrite


def shuffle(repeated, random):
    items = list(repeated)
    del repeated[:]
    repeated.extend(items[i] for i in random.permutation(len(items)))


def shuffle_nodes(graph, random):
    shuffle(graph.graph_def.node, random)


def shuffle_functions(graph, random):
    shuffle(graph.graph_def.library.function, random)


def shuffle_bodies(graph, random):
    for function in graph.graph_def.library.function:
        shuffle(function.node_def, random)


def shuffle_all(graph, random):
    for one in (shuffle_nodes, shuffle_functions, shuffle_bodies):
        one(graph, random)
    shuffle(graph.meta_info_def.stripped_op_list.op, random)


def rewrite_card(**options):
    def rewrite(folder, random):
        path = folder / card.FILE
        document = json.loads(path.read_text("utf-8"))
        names = random.permutation(list(document))
        path.write_text(
            json.dumps({n: document[n] for n in names}, **options), "utf-8"
        )

    return rewrite


def rewrite_golden(save, order):
    def rewrite(folder, random):
        with np.load(folder / golden.FILE) as stored:
            arrays = dict(stored)
        save(
            folder / golden.FILE, **{n: arrays[n] for n in order(list(arrays))}
        )

    return rewrite


def copy_folder(folder, random):
    shutil.move(folder, folder.with_name("moved"))
    shutil.copytree(folder.with_name("moved"), folder)


def copy_contents(folder, random):
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes())


def touch(folder, random):
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def open_up(folder, random):
    for path in folder.rglob("*"):
        path.chmod(0o755)


def link(folder, random):
    shutil.move(folder, folder.with_name("linked"))
    folder.symlink_to(folder.with_name("linked"))


def hard_link(folder, random):
    path = folder / SAVED_MODEL
    os.link(path, folder.with_name("another name"))


def rewrite_checkpoint(folder, random):
    edit_weights(lambda tensors: None)(folder, random)


def rewrite_warmup(folder, random):
    warmup.write(folder, warmup.read(folder))


def reorder_warmup(folder, random):
    replayed = warmup.read(folder)
    order = random.permutation(len(replayed))
    warmup.write(folder, [replayed[i] for i in order])


def make_cache(folder, random):
    (folder / "assets").mkdir(exist_ok=True)


REWRITES = {
    "the graph serialized again": rewrite_graph(),
    "the graph serialized in another order": rewrite_graph(deterministic=False),
    "nodes in another order": rewrite_graph(shuffle_nodes),
    "functions in another order": rewrite_graph(shuffle_functions),
    "nodes of functions in another order": rewrite_graph(shuffle_bodies),
    "all in another order": rewrite_graph(shuffle_all),
    "a card on one line": rewrite_card(),
    "a card in ASCII": rewrite_card(ensure_ascii=True, indent=1),
    "a card with tabs": rewrite_card(indent="\t"),
    "golden answers not compressed": rewrite_golden(np.savez, list),
    "golden answers in another order": rewrite_golden(
        np.savez_compressed, sorted
    ),
    "golden answers backwards": rewrite_golden(np.savez_compressed, reversed),
    "a warm-up written again": rewrite_warmup,
    "a warm-up in another order": reorder_warmup,
    "a checkpoint written again": rewrite_checkpoint,
    "a copied folder": copy_folder,
    "copied files": copy_contents,
    "older files": touch,
    "files open to all": open_up,
    "a linked folder": link,
    "a second name of a file": hard_link,
    "an empty folder of assets": make_cache,
}
