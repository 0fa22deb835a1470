"""The verb that pre-trains, and what is wrong with what it is given."""

import json

import pytest

from tests.training import tiny
from training import pretrain


def failed(data, workdir, capsys, **changes):
    """The last line of a run that ends with status 1."""
    config = tiny.pretraining(data, workdir, **changes)
    assert pretrain.main(tiny.flags(config, "small")) == 1
    return tiny.error(capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_text(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"strategy": "two"}, "`strategy` must be one of"),
        ({"sequence_length": 19}, "`sequence_length` .* Received: 19"),
        ({"sequence_length": 7}, "`sequence_length` .* Received: 7"),
        ({"max_predictions": 0}, "`max_predictions` .* Received: 0"),
        ({"mask_token_rate": 1.5}, "`mask_token_rate` .* Received: 1.5"),
        ({"global_batch_size": 0}, "`global_batch_size` .* Received: 0"),
        ({"global_batch_size": 999}, "`global_batch_size` .* Received: 999"),
        ({"accumulation_steps": 4}, "`accumulation_steps` .* Received: 4"),
        ({"accumulation_steps": 0}, "`accumulation_steps` .* Received: 0"),
        ({"log_interval": 0}, "`log_interval` .* Received: 0"),
        ({"evaluation_interval": 0}, "evaluation_interval=0, log_interval=1"),
        (
            {"checkpoint_interval": -1},
            "checkpoint_interval=-1, log_interval=1",
        ),
        ({"mask_selection_rate": 0.0}, "`mask_selection_rate` .* Received: 0"),
        ({"log_interval": 2}, "evaluation_interval=3, log_interval=2"),
        ({"log_interval": 3}, "checkpoint_interval=2, log_interval=3"),
        ({"warmup_steps": 6}, "`warmup_steps` .* Received: 6"),
        ({"learning_rate": -1.0}, "`learning_rate` .* Received: -1"),
        ({"clip_norm": 0.0}, "`clip_norm` .* Received: 0"),
        ({"beta_2": 1.0}, "`beta_2` .* Received: 1"),
        ({"epsilon": 0.0}, "`epsilon` .* Received: 0"),
        ({"weight_decay": -0.1}, "`weight_decay` .* Received: -0.1"),
        ({"dtype": "bfloat16"}, "`dtype` .* Received: 'bfloat16'"),
        ({"optimizer": "adam"}, "`optimizer` .* Received: 'adam'"),
    ],
)
def test_bad_values_are_one_line(change, message, data, tmp_path, capsys):
    error = failed(data, tmp_path / "run", capsys, **change)
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)
    # The right value would be refused by a folder of the wrong one.
    assert not (tmp_path / "run" / "config.json").exists()


def _pairs(folder):
    tiny.rewrite(folder, kind="pairs")
    return "manifest.json must be one that .* text` wrote. Received: pairs"


def _no_heldout(folder):
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    tiny.rewrite(folder, shards=shards | {"heldout": []})
    return "no held-out documents"


def _no_shard(folder):
    (folder / "train-00001.tfrecord").unlink()
    return "No such file or directory: .*train-00001.tfrecord"


def _cut_shard(folder):
    path = folder / "train-00001.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    return "train-00001.tfrecord is damaged"


def _no_folder(folder):
    folder.rename(folder.with_name("elsewhere"))
    return "No such file or directory: .*manifest.json"


@pytest.mark.parametrize(
    "damage", [_pairs, _no_heldout, _no_shard, _cut_shard, _no_folder]
)
def test_data_that_cannot_be_read(damage, tmp_path, capsys):
    folder = tiny.write_text(tmp_path / "data")
    message = damage(folder)
    error = failed(folder, tmp_path / "run", capsys)
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)
    assert str(folder) in error
    assert not (tmp_path / "run").exists()
