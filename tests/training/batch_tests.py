"""What holds for the batches of all tasks, as base classes of tests."""

import functools

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


class TrainingBatchesTests:
    """Of the fixtures `made`, batches that are padded to one length, and
    `examples`, which make four of them or more."""

    # Updates to start at, the number of workers, and of all replicas.
    first_steps = (7,)
    division = (2, 6)

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, made, examples):
        """Eight batches, of an epoch and more."""
        return take(made, examples, 8)

    def test_starting_later_gives_the_batches_of_later(
        self, made, examples, whole
    ):
        for first_step in self.first_steps:
            (later,) = take(made, examples, 1, first_step)
            assert_same(later, whole[first_step])

    def test_workers_and_replicas_divide_the_global_batch(
        self, made, examples, whole
    ):
        workers, replicas = self.division
        each = replicas // workers
        parts = [
            take(made, examples, 3 * each, context=context)
            for context in contexts(workers, replicas)
        ]
        for step in range(3):
            mine = [
                batch
                for part in parts
                for batch in part[step * each : (step + 1) * each]
            ]
            joined = tf.nest.map_structure(
                lambda *values: np.concatenate(values), *mine
            )
            assert_same(joined, whole[step])


class BatchesTests(TrainingBatchesTests):
    """Of `ExampleBatches` of six."""

    def test_evaluation_has_every_example_once(self, made, examples):
        rows = made.reader(examples)(np.arange(len(examples)))
        seen, counts = [], []
        for context in contexts(2, 2):
            batches = list(made.evaluation(examples, context))
            counts.append(len(batches))
            for batch in batches:
                index = batch.pop("index").numpy()
                assert len(index) == BATCH // 2
                gather = functools.partial(
                    tf.gather, indices=np.maximum(index, 0)
                )
                assert_same(batch, tf.nest.map_structure(gather, rows))
                seen += index[index >= 0].tolist()
        assert counts[0] == counts[1]
        assert sorted(seen) == list(range(len(examples)))
