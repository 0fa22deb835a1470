"""Two replicas make the updates that one makes on the same global batch."""

import subprocess
import sys

import numpy as np
import pytest

from tests.training import tiny, workers
from tests.training.engine.test_loop import attention_steps
from tests.training.engine.two_replicas import (
    CASES,
    PRETRAINING,
    REPORTS,
    difference,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that makes runs by name, once, and returns their folder."""
    folder = tmp_path_factory.mktemp("replicas")
    made = set()

    def make(*names):
        if names := [name for name in names if name not in made]:
            program = "tests.training.engine.two_replicas"
            done = subprocess.run(
                [sys.executable, "-m", program, str(folder), *names],
                cwd=workers.ROOT,
                env=workers.ENVIRONMENT,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            made.update(names)
        return folder

    return make


# Retrieval alone stands for them where there is little time: it gathers, adds
# up and draws what the others do.
@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "retrieval"
        else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_learning_from_the_whole_batch_is_the_same(runs, name):
    # Losses agree if what is compared with comes from both replicas and the
    # batches are the same; the norms, if gradients flow back to both.
    folder = runs(name)
    one, two = (
        folder / strategy / name for strategy in ("one_device", "mirrored")
    )
    assert difference(one, two) < 1e-9
    for a, b in zip(tiny.metrics(one), tiny.metrics(two), strict=True):
        assert b == pytest.approx(a, rel=1e-5)
    changes = CASES[name].changes
    if "clip_norm" in changes:
        norms = [r["gradient_norm"] for r in tiny.metrics(one) if "loss" in r]
        assert min(norms) > changes["clip_norm"]  # all updates are clipped
    steps = [0, 50] if changes["steps"] == PRETRAINING["steps"] else [0]
    assert attention_steps(two) == steps
    assert not attention_steps(one)


@pytest.mark.slow
def test_accumulated_gradients_are_the_same(runs):
    folder = runs("sgd", "accumulated")
    assert difference(folder / "one_device/sgd", folder / "accumulated") < 1e-9


@pytest.mark.slow
def test_dropout_is_drawn_anew_on_each_replica_and_call(runs):
    draws = np.load(runs("dropped") / "dropped.npy").reshape([-1, 97])
    assert len(draws) == 4
    for i, one in enumerate(draws):
        assert 30 < one.sum() < 67
        for other in draws[:i]:
            # Half of them differ, as between any two draws.
            assert 20 < (one != other).sum() < 77


@pytest.mark.slow
def test_replicas_of_a_run_drop_different_activations(runs):
    records = tiny.metrics(runs("dropped") / "dropped")
    trained = [r["dropped_by_one"] for r in records if "loss" in r]
    assert len(trained) == 7
    # Half of 97, as of any two draws.
    assert all(20 < 97 * part < 77 for part in trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "sgd", "retrieval", "distillation"])
def test_two_workers_learn_the_same(runs, name, tmp_path):
    folder, case = runs(name), CASES[name]
    config = case.config(
        folder, tmp_path / "train", strategy="multi_worker", **REPORTS
    )
    args = tiny.flags(config, case.named)
    addresses = workers.addresses(2)
    module = case.verb.__name__
    both = [workers.start(addresses, index, module, args) for index in (0, 1)]
    assert [process.wait() for process in both] == [0, 0]
    assert difference(folder / "one_device" / name, tmp_path / "train") < 1e-9
    assert (tmp_path / "train" / "preset").exists()
    assert attention_steps(tmp_path / "train")[0] == 0
