"""Rewrites of an export that do no harm.

Each takes the folder and a NumPy generator.
"""

import json
import os
import shutil

import numpy as np

from export.files import card, golden, warmup
from tests.export.faults import edit_weights
from tests.export.graph_faults import SAVED_MODEL, edit_graph


def shuffle(repeated):
    items = list(repeated)
    del repeated[:]
    order = np.random.default_rng(5).permutation(len(items))
    repeated.extend(items[i] for i in order)


def shuffle_nodes(graph):
    shuffle(graph.graph_def.node)


def shuffle_functions(graph):
    shuffle(graph.graph_def.library.function)


def shuffle_bodies(graph):
    for function in graph.graph_def.library.function:
        shuffle(function.node_def)


def shuffle_all(graph):
    for one in (shuffle_nodes, shuffle_functions, shuffle_bodies):
        one(graph)
    shuffle(graph.meta_info_def.stripped_op_list.op)


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
    "the graph serialized again": edit_graph(deterministic=True),
    "the graph serialized in another order": edit_graph(deterministic=False),
    "nodes in another order": edit_graph(shuffle_nodes),
    "functions in another order": edit_graph(shuffle_functions),
    "nodes of functions in another order": edit_graph(shuffle_bodies),
    "all in another order": edit_graph(shuffle_all),
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
