"""The peak of a device: measured on a CPU, known by name of a GPU."""

import types

import pytest

from training.engine import trainer
from training.engine.trainer import _measured, _of_gpu


def test_best_product_counts_each_addition(monkeypatch):
    times = types.SimpleNamespace(repeat=lambda product, **_: [5, 2, 3])
    monkeypatch.setattr(trainer, "timeit", times)
    # Of each of 7 x 7 results, 7 multiplications and their additions.
    assert _measured("float32", size=7) == 7 * 7 * (7 + 7) / 2


@pytest.mark.parametrize(
    "name, peak",
    [
        ("Tesla T4", 65e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA L40S", None),
        ("", None),
    ],
)
def test_gpu_is_known_by_its_name(name, peak):
    assert _of_gpu(name) == peak
