"""Strategies by name, and the errors where one cannot be had."""

import json

import pytest
import tensorflow as tf

from training.engine.strategy import (
    get_strategy,
    is_chief,
    replica_batch_size,
    worker_number,
)


def test_one_device_has_one_replica():
    strategy = get_strategy("one_device")
    assert strategy.num_replicas_in_sync == 1
    assert is_chief(strategy)
    assert worker_number(strategy) == (0, 1)


def test_unknown_name():
    with pytest.raises(ValueError, match="`strategy` .* Received: 'two'"):
        get_strategy("two")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "not JSON",
        "[]",
        "{}",
        json.dumps({"cluster": {"worker": ["a:1"]}, "task": {}}),
        *(
            json.dumps(
                {
                    "cluster": {"worker": [address]},
                    "task": {"type": "worker", "index": 0},
                }
            )
            for address in ("a", "a:b", "a:0", "a:65536")
        ),
        json.dumps(
            {
                "cluster": {"worker": ["a:1"]},
                "task": {"type": "worker", "index": 1},
            }
        ),
    ],
)
def test_multi_worker_asks_for_a_valid_tf_config(text, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG .* of the form"):
        get_strategy("multi_worker")


def test_no_tpu():
    with pytest.raises(ValueError, match="found no TPU"):
        get_strategy("tpu")


@pytest.mark.parametrize(
    "cluster, task, chief, number",
    [
        ({"worker": ["a:1", "b:1"]}, ("worker", 0), True, 0),
        ({"worker": ["a:1", "b:1"]}, ("worker", 1), False, 1),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("worker", 0), False, 1),
        ({"chief": ["c:1"], "worker": ["a:1"]}, ("chief", 0), True, 0),
    ],
)
def test_one_process_of_a_cluster_is_chief(cluster, task, chief, number):
    class Strategy:
        cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type=task[0], task_id=task[1]
        )

    assert is_chief(Strategy()) is chief
    assert worker_number(Strategy()) == (number, 2)


def test_batches_divide_over_replicas():
    assert replica_batch_size(21, 3) == 7
    for size in (0, -3, 22):
        with pytest.raises(ValueError, match=f"Received: {size}"):
            replica_batch_size(size, 3)
