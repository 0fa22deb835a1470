"""Examples of masked tokens and next sentences."""

import collections
import dataclasses
import typing

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.training import numbered
from tests.training.batch_tests import (
    ONE,
    TrainingBatchesTests,
    assert_same,
    contexts,
    take,
)
from training.masked_lm.configs import MaskedLMConfig
from training.masked_lm.task import PretrainingBatches

START, END, MASK = map(SPECIAL_TOKENS.index, ("[CLS]", "[SEP]", "[MASK]"))
# Tokens of each document of each shard, 226 in all.
LENGTHS = [[2, 9, 30], [8, 17, 5], [24, 16], [40, 3], [7, 65]]
# With 113 in memory at a time there are two windows.
WINDOWS = [[0, 2, 4], [1, 3]]
CONFIG = MaskedLMConfig(
    sequence_length=11,
    max_predictions=2,
    shuffle_tokens=113,
    evaluation_examples=7,
)
# These have 22 and 11 chunks of at most 8 tokens, 5 and 2 batches of 4.
BATCH, STEPS = 4, 7
EPOCHS = 40


class Example(typing.NamedTuple):
    """What an example was made of."""

    first: np.ndarray  # tokens
    second: np.ndarray
    elsewhere: int
    masked: list[int]  # places in the sequence
    values: list[int]  # what stands there


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return numbered.write(tmp_path_factory.mktemp("corpus"), LENGTHS)


def batches(batch=BATCH, seed=3, **changes):
    return PretrainingBatches(
        dataclasses.replace(CONFIG, **changes),
        batch,
        FixedHeadTokenizer([*SPECIAL_TOKENS, *map(str, range(226))]),
        seed,
    )


def examples(made):
    """Reads batches; asserts that they are laid out as they should."""
    read = []
    for batch in made:
        for values in zip(*batch.values(), strict=True):
            row = dict(zip(batch, values))
            ids, weights = row["token_ids"].copy(), row["mask_weights"].tolist()
            number = weights.count(1.0)
            assert weights == [1.0] * number + [0.0] * (len(weights) - number)
            masked = row["mask_positions"][:number].tolist()
            values = ids[masked].tolist()
            ids[masked] = row["mask_ids"][:number]
            assert not row["mask_positions"][number:].any()
            assert not row["mask_ids"][number:].any()
            ends = np.flatnonzero(ids == END)
            size = ends[-1] + 1
            places = np.arange(len(ids))
            assert row["padding_mask"].tolist() == (places < size).tolist()
            assert ids[0] == START and not ids[size:].any()
            second = (places > ends[0]) & (places < size)
            assert row["segment_ids"].tolist() == second.tolist()
            first, second = (
                part[:-1] - len(SPECIAL_TOKENS)
                for part in np.split(ids[1:size], [ends[0]])
            )
            elsewhere = int(row["next_sentence_labels"])
            read.append(Example(first, second, elsewhere, masked, values))
    return read


@pytest.fixture(scope="module")
def training(text):
    return batches().training(text.shards, ONE, 0)


@pytest.fixture(scope="module")
def whole(training):
    """The batches of many epochs, on one replica."""
    return list(training.take(EPOCHS * STEPS).as_numpy_iterator())


@pytest.fixture(scope="module")
def evaluation(text):
    return batches().evaluation(text.shards, ONE)


@pytest.fixture(scope="module")
def read(whole):
    return examples(whole)


@pytest.fixture(scope="module")
def chunks(read):
    """Where chunks end, by where they start."""
    return {x.first[0]: x.second[-1] + 1 for x in read if not x.elsewhere}


def assert_contiguous(tokens, text):
    assert len(tokens)
    assert (np.diff(tokens) == 1).all()
    assert text.document[tokens[0]] == text.document[tokens[-1]]


def test_shapes_are_static(training, evaluation):
    shapes = {
        **dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), (4, 11)),
        **dict.fromkeys(("mask_positions", "mask_ids", "mask_weights"), (4, 2)),
        "next_sentence_labels": (4,),
    }
    spec = training.element_spec
    assert {k: tuple(v.shape) for k, v in spec.items()} == shapes
    assert {k: v.dtype for k, v in spec.items()} == {
        k: "float32" if k == "mask_weights" else "int32" for k in shapes
    }
    index = {"index": tf.TensorSpec([4], tf.int64)}
    assert evaluation.element_spec == spec | index


def test_chunks_are_documents_in_few_and_equal_parts(text, chunks):
    for start, end in text.documents:
        lengths = []
        while start < end:
            lengths.append(chunks[start] - start)
            start = chunks[start]
        assert start == end
        assert len(lengths) == -(-sum(lengths) // 8)
        assert max(lengths) - min(lengths) <= 1
    assert len(chunks) == 33


def splits(start, end, text):
    """Where a chunk may be divided."""
    inside = range(start + 1, end)
    return [x for x in inside if x in text.line_starts] or list(inside)


def test_chunks_are_divided_where_a_line_begins(text, read, chunks):
    divided = collections.defaultdict(set)
    for example in read:
        assert_contiguous(example.first, text)
        divided[example.first[0]].add(example.first[-1] + 1)
        if not example.elsewhere:
            both = np.concatenate([example.first, example.second])
            assert_contiguous(both, text)
    # In so many epochs each place once.
    assert divided == {
        start: set(splits(start, end, text)) for start, end in chunks.items()
    }
    numbers = [len(divided[start]) for start in chunks]
    assert min(numbers) == 1 and max(numbers) == 7


def test_other_text_is_from_another_document(text, read, chunks):
    sources, begins = collections.Counter(), collections.defaultdict(set)
    for example in read:
        if not example.elsewhere:
            continue
        assert_contiguous(example.second, text)
        source = text.document[example.second[0]]
        sources[source] += 1
        assert source != text.document[example.first[0]]
        start, end = text.documents[source]
        begin, divided = example.second[0], example.first[-1] + 1
        begins[source].add(begin - start)
        # It begins a line where what it stands for does, and only there; one
        # token further on there may be another line, or nothing.
        if divided in text.line_starts:
            assert begin in text.line_starts
        elif begin in text.line_starts:
            assert begin - 1 in text.line_starts or begin == end - 1
        # As much as it stands for, or all there is.
        size = chunks[example.first[0]] - divided
        assert len(example.second) == min(size, end - begin)
        assert len(example.second) >= min(size, end - start) - 1
        # Of what is in memory.
        one, other = (
            text.shard[tokens[0]] in WINDOWS[0]
            for tokens in (example.first, example.second)
        )
        assert one == other
    assert sources.keys() == set(range(len(text.documents)))
    assert len(begins[11]) > 20  # of 65 tokens
    # Longer documents give more, as many as their chunks (9 here, 1 there).
    assert sources[11] > 3 * sources[10] > 0


def test_an_epoch_has_each_chunk_at_most_once(text, read, chunks):
    orders, left_out, first_windows = [], set(), set()
    for epoch in np.split(np.arange(len(read)), EPOCHS):
        starts = [read[number].first[0] for number in epoch]
        assert len(set(starts)) == STEPS * BATCH
        windows = [text.shard[start] in WINDOWS[1] for start in starts]
        # One window after the other, and of each as many batches as it has.
        assert sorted(windows) in (windows, windows[::-1])
        assert sum(windows) == 2 * BATCH
        first_windows.add(windows[0])
        orders.append(tuple(starts))
        left_out.add(frozenset(chunks.keys() - set(starts)))
    assert len(set(orders)) == EPOCHS and len(left_out) > EPOCHS / 2
    assert first_windows == {False, True}
    assert frozenset.intersection(*left_out) == frozenset()


def test_masks(read):
    masks, shares = collections.defaultdict(set), collections.Counter()
    for example in read:
        size = len(example.first) + len(example.second)
        may = {*range(1, size + 2)} - {len(example.first) + 1}
        # 15%, rounded up.
        assert len(example.masked) == (1 if size < 7 else 2)
        assert sorted(example.masked) == example.masked
        assert len({*example.masked} & may) == len(example.masked)
        masks[example.first[0]].add(tuple(example.masked))
        ids = [-1, *example.first, -1, *example.second]
        for place, value in zip(example.masked, example.values):
            if value == MASK:
                shares["masked"] += 1
            elif value == ids[place] + len(SPECIAL_TOKENS):
                shares["kept"] += 1
            else:
                shares["random"] += 1
    assert min(map(len, masks.values())) > 1
    expected = {"masked": 0.8, "kept": 0.1, "random": 0.1}
    for name, share in expected.items():
        assert shares[name] / shares.total() == pytest.approx(share, abs=0.04)


def test_half_of_the_second_segments_are_from_elsewhere(read):
    part = np.mean([example.elsewhere for example in read])
    assert part == pytest.approx(0.5, abs=0.06)  # four standard errors


class TestBatches(TrainingBatchesTests):
    # In the second window of the third epoch.
    first_steps = (18,)
    division = (2, 4)

    @pytest.fixture
    def made(self):
        return batches()

    @pytest.fixture
    def examples(self, text):
        return text.shards

    @pytest.fixture
    def whole(self, whole):
        return whole


def test_evaluation_has_each_example_once(text, evaluation):
    whole, again = (list(evaluation.as_numpy_iterator()) for _ in range(2))
    assert_same(again, whole)
    indices = np.concatenate([batch.pop("index") for batch in whole])
    assert indices.tolist() == [*range(7), -1]
    expected = examples(whole)
    assert len({example.first[0] for example in expected[:7]}) == 7
    # Two replicas take half of each batch in turn.
    dataset = batches().evaluation(text.shards, contexts(1, 2)[0])
    halves = list(dataset.as_numpy_iterator())
    found = np.concatenate([batch.pop("index") for batch in halves])
    assert found.tolist() == indices.tolist()
    np.testing.assert_equal(examples(halves)[:7], expected[:7])


@pytest.mark.slow
def test_without_next_sentences(text):
    made = batches(next_sentence=False, shuffle_tokens=1000)
    found = set()
    for example in examples(take(made, text.shards, 7)):
        assert_contiguous(example.first, text)
        assert not example.elsewhere and not len(example.second)
        start, end = text.documents[text.document[example.first[0]]]
        # A token more than with two segments.
        pieces = -(-(end - start) // 9)
        assert len(example.first) in (
            (end - start) // pieces,
            -(-(end - start) // pieces),
        )
        assert found.isdisjoint(example.first)
        found.update(example.first.tolist())


def test_rates_are_checked_together():
    message = "`mask_token_rate` and .* 0.8 and 0.3"
    with pytest.raises(ValueError, match=message):
        batches(random_token_rate=0.3)


def test_a_batch_fits_into_each_window(text):
    with pytest.raises(ValueError, match="`global_batch_size` .* 11 .*: 12$"):
        batches(batch=12).training(text.shards, ONE, 0)
    batches(batch=11).training(text.shards, ONE, 0)


def test_next_sentences_need_two_documents(text):
    one = [dataclasses.replace(text.shards[0], document_lengths=np.array([41]))]
    # In each of the windows.
    for tokens, shards in ((113, one), (41, one + text.shards[2:3])):
        made = batches(shuffle_tokens=tokens)
        with pytest.raises(ValueError, match="`next_sentence` .* two at least"):
            made.training(shards, ONE, 0)
