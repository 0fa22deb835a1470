"""The batch sizes that the warm-up takes from the server's configuration."""

import pytest

from export.files import warmup


def test_default():
    assert warmup.read_batch_sizes(warmup.BATCHING_PARAMETERS) == [
        1,
        2,
        4,
        8,
        16,
        32,
    ]


def test_without_sizes(tmp_path):
    path = tmp_path / "batching_parameters.txt"
    path.write_text("max_batch_size { value: 3 }")
    with pytest.raises(ValueError, match="no `allowed_batch_sizes`"):
        warmup.read_batch_sizes(path)
