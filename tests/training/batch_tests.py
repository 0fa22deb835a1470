"""What holds for all batches of numbered examples, as a base class of tests."""

import numpy as np
import pytest
import tensorflow as tf

ONE = tf.distribute.InputContext()
BATCH = 6


def contexts(workers, replicas):
    """The context of each worker."""
    return [
        tf.distribute.InputContext(workers, worker, replicas)
        for worker in range(workers)
    ]


def take(made, examples, count, first_step=0, context=ONE):
    """The first batches of a training from an update on."""
    dataset = made.training(examples, context, first_step)
    return list(dataset.take(count).as_numpy_iterator())


def assert_same(one, two):
    for left, right in zip(
        tf.nest.flatten(one), tf.nest.flatten(two), strict=True
    ):
        np.testing.assert_array_equal(left, right)


class BatchesTests:
    """Of the fixtures `made`, `ExampleBatches` of six that are padded to one
    length, and `examples`, which make four or more of them."""

    @pytest.fixture(scope="class")
    def whole(self, made, examples):
        """Eight batches, of an epoch and more."""
        return take(made, examples, 8)

    @pytest.mark.parametrize("first_step", [4, 7])
    def test_starting_later_gives_the_batches_of_later(
        self, made, examples, whole, first_step
    ):
        (later,) = take(made, examples, 1, first_step)
        assert_same(later, whole[first_step])

    @pytest.mark.parametrize(
        "workers, replicas",
        [(2, 6), pytest.param(1, 2, marks=pytest.mark.slow)],
    )
    def test_workers_and_replicas_divide_the_global_batch(
        self, made, examples, whole, workers, replicas
    ):
        each = replicas // workers
        parts = [
            take(made, examples, 2 * each, context=context)
            for context in contexts(workers, replicas)
        ]
        for step in range(2):
            mine = [
                batch
                for part in parts
                for batch in part[step * each : (step + 1) * each]
            ]
            joined = tf.nest.map_structure(
                lambda *values: np.concatenate(values), *mine
            )
            assert_same(joined, whole[step])

    def test_evaluation_has_every_example_once(self, made, examples):
        read = made.reader(examples)
        seen, counts = [], []
        for context in contexts(2, 2):
            batches = list(made.evaluation(examples, context))
            counts.append(len(batches))
            for batch in batches:
                index = batch.pop("index").numpy()
                assert len(index) == BATCH // 2
                assert_same(batch, read(np.maximum(index, 0)))
                seen += index[index >= 0].tolist()
        assert counts[0] == counts[1]
        assert sorted(seen) == list(range(len(examples)))
