"""The gate finds planted faults, and lets harmless rewrites pass.

Each fault is planted twice: under the manifest of the sound export, and under
a manifest written again, so that every kind has a check of its own.
"""

import shutil

import numpy as np
import pytest

from export import checks, verify
from export.checks.exported import Exported
from tests.export import faults, rewrites

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
    assert len(rewrites.REWRITES) >= 20


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
    for index, rewrite in enumerate(rewrites.REWRITES.values()):
        rewrite(copied, np.random.default_rng([SEED, index]))
    faults.seal(copied)
    exported = Exported(copied)
    for name in (*checks.STATIC, "weights", "golden answers", "warm-up"):
        passed, detail = checks.run(name, exported)
        assert passed, detail


@pytest.mark.slow
@pytest.mark.parametrize("name", rewrites.REWRITES)
def test_a_rewrite_passes(copied, name):
    rewrites.REWRITES[name](copied, np.random.default_rng(SEED))
    faults.seal(copied)
    assert failed(copied) == {}
