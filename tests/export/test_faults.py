"""The gate finds planted faults, and lets harmless rewrites pass.

Each fault is planted twice: under the manifest of the sound export, and under
a manifest written again, so that every kind has a check of its own. A rewrite
takes the folder and a NumPy generator.
"""

import json
import os
import shutil

import numpy as np
import pytest

from export import checks, verify
from export.checks.exported import Exported
from export.files import card, golden, warmup
from tests.export import faults
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


SEED = 26


@pytest.fixture
def copied(base_path, tmp_path):
    return shutil.copytree(base_path / "3", tmp_path / "3")


def failed(folder):
    return {r.name: r.detail for r in verify.run_checks(folder) if not r.passed}


def plant(index, folder):
    """Plants a fault; returns the check that finds it."""
    _, check, change = faults.FAULTS[index]
    change(folder, np.random.default_rng([SEED, index]))
    return check


def test_sixty_faults():
    assert len({name for name, _, _ in faults.FAULTS}) >= 60
    assert len(REWRITES) >= 20


def _cases():
    """Every fault; of those that a running model shows, one of each check."""
    seen = set(checks.STATIC)
    for index, (name, check, _) in enumerate(faults.FAULTS):
        slow = check in seen - checks.STATIC.keys()
        marks = [pytest.mark.slow] if slow else []
        seen.add(check)
        yield pytest.param(index, id=name, marks=marks)


@pytest.mark.parametrize("index", list(_cases()))
def test_finds_a_fault(copied, index):
    check = plant(index, copied)
    if check not in ("permissions", "files"):
        passed, detail = checks.run("manifest", Exported(copied))
        assert not passed, "under the old manifest"
    faults.seal(copied)
    passed, detail = checks.run(check, Exported(copied))
    assert not passed, "under a manifest written again"
    assert len(detail.split()) > 2, detail


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("index", range(len(faults.FAULTS)))
def test_the_whole_gate_finds_a_fault(copied, index, sealed):
    check = plant(index, copied)
    if sealed:
        faults.seal(copied)
    assert check in failed(copied)


def test_a_pipe_is_not_waited_for(copied):
    faults.make_pipe(copied, None)
    assert failed(copied).keys() == {"files"}


def test_rewrites_together(copied):
    for index, rewrite in enumerate(REWRITES.values()):
        rewrite(copied, np.random.default_rng([SEED, index]))
    faults.seal(copied)
    exported = Exported(copied)
    for name in (*checks.STATIC, "weights", "golden answers", "warm-up"):
        passed, detail = checks.run(name, exported)
        assert passed, detail


@pytest.mark.slow
@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_passes(copied, name):
    REWRITES[name](copied, np.random.default_rng(SEED))
    faults.seal(copied)
    assert failed(copied) == {}
