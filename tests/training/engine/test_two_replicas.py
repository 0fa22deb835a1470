"""Two replicas make the updates that one makes on the same global batch."""

import subprocess
import sys

import numpy as np
import pytest

from tests.training import tiny, workers
from tests.training.engine.test_loop import attention_steps
from tests.training.engine.two_replicas import (
    DISTILLATION,
    OPTIMIZERS,
    PRETRAINING,
    REPORTS,
    RETRIEVAL,
    difference,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    return run_all(folder, ["retrieval"])


@pytest.fixture(scope="module")
def dropped(folder):
    return run_all(folder, ["dropped"])


@pytest.fixture(scope="module")
def sgd(folder):
    return run_all(folder, ["sgd", "accumulated"])


@pytest.fixture(scope="module")
def adamw(folder):
    return run_all(folder, ["adamw"])


@pytest.fixture(scope="module")
def classification(folder):
    return run_all(folder, ["classification"])


@pytest.fixture(scope="module")
def distillation(folder):
    return run_all(folder, ["distillation"])


@pytest.fixture(scope="module")
def language_model(folder):
    return run_all(folder, ["language_model"])


def run_all(folder, names):
    program = [sys.executable, "-m", "tests.training.engine.two_replicas"]
    done = subprocess.run(
        [*program, str(folder), *names],
        cwd=workers.ROOT,
        env=workers.ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pretraining_is_the_same(folder, optimizer, request):
    request.getfixturevalue(optimizer)
    one, two = (
        folder / name / optimizer for name in ("one_device", "mirrored")
    )
    assert difference(one, two) < 1e-9
    for a, b in zip(tiny.metrics(one), tiny.metrics(two), strict=True):
        assert b == pytest.approx(a, rel=1e-5)
    norms = [r["gradient_norm"] for r in tiny.metrics(one) if "loss" in r]
    assert min(norms) > PRETRAINING["clip_norm"]  # all updates are clipped


# Retrieval alone stands for them where there is little time: it gathers, adds
# up and draws what the others do.
_DISTILLATION = pytest.param("distillation", marks=pytest.mark.slow)
_LANGUAGE_MODEL = pytest.param("language_model", marks=pytest.mark.slow)
_SGD = pytest.param("sgd", marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "name", ["retrieval", _DISTILLATION, _LANGUAGE_MODEL, _SGD]
)
def test_two_replicas_report_their_attention(folder, name, request):
    if name != "retrieval":
        request.getfixturevalue(name)
    steps = [0, 50] if name == "sgd" else [0]
    assert attention_steps(folder / "mirrored" / name) == steps
    assert not attention_steps(folder / "one_device" / name)


@pytest.mark.slow
def test_accumulated_gradients_are_the_same(folder, sgd):
    assert difference(folder / "one_device" / "sgd", folder / "accumulated") < (
        1e-9
    )


@pytest.mark.parametrize("task", ["retrieval", _DISTILLATION, _LANGUAGE_MODEL])
def test_learning_from_the_whole_batch_is_the_same(folder, task, request):
    if task != "retrieval":
        request.getfixturevalue(task)
    # Losses agree if what is compared with comes from both replicas and the
    # batches are the same; the norms, if gradients flow back to both.
    runs = [folder / name / task for name in ("one_device", "mirrored")]
    assert difference(*runs) < 1e-9
    one, two = (tiny.metrics(run) for run in runs)
    assert len(one) == 7
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=1e-5)


@pytest.mark.slow
def test_classification_is_the_same(folder, classification):
    runs = [
        folder / name / "classification" for name in ("one_device", "mirrored")
    ]
    assert difference(*runs) < 1e-9
    one, two = (tiny.metrics(run) for run in runs)
    assert len(one) == 9
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=1e-5)


@pytest.mark.slow
def test_dropout_is_drawn_anew_on_each_replica_and_call(dropped):
    draws = np.load(dropped / "dropped.npy").reshape([-1, 97])
    assert len(draws) == 4
    for i, one in enumerate(draws):
        assert 30 < one.sum() < 67
        for other in draws[:i]:
            # Half of them differ, as between any two draws.
            assert 20 < (one != other).sum() < 77


@pytest.mark.slow
def test_replicas_of_a_run_drop_different_activations(dropped):
    trained = [r for r in tiny.metrics(dropped / "dropped") if "loss" in r]
    assert len(trained) == 7
    for record in trained:
        # Half of 97, as of any two draws.
        assert 20 < 97 * record["dropped_by_one"] < 77


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_workers_pretrain_the_same(folder, sgd, adamw, optimizer, tmp_path):
    changes = {**PRETRAINING, **OPTIMIZERS[optimizer], **REPORTS}
    run = tiny.pretraining(
        folder / "text",
        tmp_path / "train",
        strategy="multi_worker",
        **changes,
    )
    args = tiny.flags(run, "small")
    assert _finished("training.pretrain", args)
    one = folder / "one_device" / optimizer
    assert difference(one, tmp_path / "train") < 1e-9
    assert (tmp_path / "train" / "preset").exists()
    assert attention_steps(tmp_path / "train") == [0, 50]


@pytest.mark.slow
def test_two_workers_learn_retrieval_the_same(folder, tmp_path):
    run = tiny.retrieval(
        folder / "pairs",
        tmp_path / "train",
        strategy="multi_worker",
        **RETRIEVAL,
        **REPORTS,
    )
    assert _finished("training.finetune", tiny.flags(run, "demo_retrieval"))
    one = folder / "one_device" / "retrieval"
    assert difference(one, tmp_path / "train") < 1e-9


@pytest.mark.slow
def test_two_workers_distill_the_same(folder, distillation, tmp_path):
    run = tiny.distillation(
        folder / "texts.txt",
        folder / "teacher",
        tmp_path / "train",
        strategy="multi_worker",
        **DISTILLATION,
        **REPORTS,
    )
    assert _finished("training.distill", tiny.flags(run, "compact"))
    one = folder / "one_device" / "distillation"
    assert difference(one, tmp_path / "train") < 1e-9


def _finished(module, args):
    addresses = workers.addresses(2)
    both = [workers.start(addresses, index, module, args) for index in range(2)]
    return [process.wait() for process in both] == [0, 0]
