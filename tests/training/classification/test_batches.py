"""Batches of labelled texts."""

import numpy as np
import pytest

from keras_fixedhead import (
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTokenizer,
)
from tests.training import tiny
from tests.training.batch_tests import BATCH, ONE, BatchesTests, take
from training.classification.task import LabelledBatches
from training.corpus.texts import read_examples


def batches(packed, seed=3):
    preprocessor = FixedHeadTextClassifierPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
    )
    return LabelledBatches(BATCH, preprocessor, seed, packed)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tiny.write_labelled(tmp_path_factory.mktemp("data"), count=29)
    return read_examples(folder / "train.tsv")


@pytest.fixture(scope="module")
def made():
    return batches(packed=False)


class TestBatches(BatchesTests):
    pass


def test_batches_are_the_examples(examples):
    whole = {
        (f"{a} {b}", int(label))
        for a, b, label in zip(examples.first, examples.second, examples.labels)
    }
    drawn = [
        [
            (" ".join(tiny.VOCABULARY[i] for i in row if i > 4), int(label))
            for batch in take(batches(True, seed), examples, 4)
            for row, label in zip(batch["token_ids"], batch["labels"])
        ]
        for seed in (3, 4)
    ]
    # What does not fill a batch is left out of an epoch.
    assert len(drawn[0]) == 24 and set(drawn[0]) <= whole
    assert drawn[0] != drawn[1]


def test_batches_are_as_long_as_they_have_to_be(examples, made):
    (packed,) = take(batches(packed=True), examples, 1)
    longest = packed["padding_mask"].sum(axis=1).max()
    assert packed["token_ids"].shape == (BATCH, longest)
    assert {v.dtype for v in packed.values()} == {np.dtype("int32")}
    padded = made.training(examples, ONE, 0).element_spec["token_ids"]
    assert padded.shape[1] == 17
