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


def found(drawn):
    """The words and the label of each row."""
    return [
        (" ".join(tiny.VOCABULARY[i] for i in row if i > 4), int(label))
        for batch in drawn
        for row, label in zip(batch["token_ids"], batch["labels"])
    ]


class TestBatches(BatchesTests):
    def test_batches_are_the_examples(self, examples, whole):
        expected = {
            (f"{a} {b}", int(label))
            for a, b, label in zip(
                examples.first, examples.second, examples.labels
            )
        }
        # What does not fill a batch is left out of an epoch.
        epoch = whole[:4]
        assert len(found(epoch)) == 24 and set(found(epoch)) <= expected
        assert {batch["token_ids"].shape for batch in epoch} == {(BATCH, 17)}
        packed = take(batches(packed=True, seed=4), examples, 4)
        assert found(packed) != found(epoch) and set(found(packed)) <= expected
        for batch in packed:
            longest = batch["padding_mask"].sum(axis=1).max()
            assert batch["token_ids"].shape == (BATCH, longest)
            assert {v.dtype for v in batch.values()} == {np.dtype("int32")}

    def test_padded_batches_have_a_static_shape(self, examples, made):
        spec = made.training(examples, ONE, 0).element_spec
        assert spec["token_ids"].shape[1] == 17
