"""100,000 examples of real text: what is masked, how, and which pairs.

Shape letters: B examples, L sequence length, K predictions, V vocabulary.

Every bound is one that a correct program leaves less than once in a million
times; with a seed that does not change it is either met or not.
"""

import pathlib

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from training.corpus.tokenized import Document, Shard, write_shard
from training.masked_lm.configs import MaskedLMConfig
from training.masked_lm.task import PretrainingBatches

DATA = pathlib.Path(__file__).parents[4] / "shared" / "data"
EXAMPLES = 100_000
BATCH = 1_000
ALARM = 1e-6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason=f"wants texts in {DATA}"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return FixedHeadTokenizer(str(DATA / "vocab" / "vocab.txt"))


@pytest.fixture(scope="module")
def shards(tokenizer, tmp_path_factory):
    """A novel is a document, a paragraph a line; ten novels a shard."""
    folder = tmp_path_factory.mktemp("novels")
    novels = sorted(DATA.glob("eltec/text/*.txt"))

    def document(novel):
        lines = [line for line in novel.read_text("utf-8").split("\n") if line]
        ids = tokenizer.tokenize_in_graph(tf.constant(lines))
        lengths = ids.row_lengths().numpy()
        return Document(ids.flat_values.numpy(), lengths[lengths > 0])

    made = []
    for start in range(0, len(novels), 10):
        documents = [document(novel) for novel in novels[start : start + 10]]
        entry = write_shard(folder, f"train-{start}", documents)
        lengths = np.array([len(x.token_ids) for x in documents])
        made.append(Shard(folder / entry["name"], lengths, entry["sha256"]))
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["token", "word"])
def whole_word(request):
    return request.param


@pytest.fixture(scope="module")
def made(tokenizer, shards, whole_word):
    """The examples, `[B, ...]`, their tokens without masks in `original`."""
    config = MaskedLMConfig(128, max_predictions=20, whole_word=whole_word)
    dataset = PretrainingBatches(config, BATCH, tokenizer, seed=3).training(
        shards, tf.distribute.InputContext(), 0
    )
    batches = list(dataset.take(EXAMPLES // BATCH).as_numpy_iterator())
    made = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
    rows = np.nonzero(made["mask_weights"])
    made["original"] = made["token_ids"].copy()
    where = rows[0], made["mask_positions"][rows]
    made["original"][where] = made["mask_ids"][rows]
    made["predicted"] = np.zeros(made["original"].shape, bool)
    made["predicted"][where] = True
    return made


def assert_part(number, total, part):
    """Whether so many are a part of independent draws."""
    result = scipy.stats.binomtest(int(number), int(total), part)
    low, high = result.proportion_ci(1 - ALARM)
    print(f"\n{number} of {total}: {number / total:.4f} ({low:.4f}-{high:.4f})")
    assert result.pvalue > ALARM, part


def test_part_of_the_tokens(made, tokenizer, whole_word):
    special = [tokenizer.start_token_id, tokenizer.end_token_id]
    may = (made["padding_mask"] == 1) & ~np.isin(made["original"], special)
    assert not made["predicted"][~may].any()
    predicted = made["predicted"].sum(1)
    print(f"\n{predicted.sum()} of {may.sum()} tokens predicted")
    budget = np.minimum(np.ceil(np.float32(0.15) * may.sum(1)), 20)
    assert (predicted <= budget).all()
    # A word that does not fit leaves room.
    assert (predicted == budget).all() != whole_word


def test_what_stands_there(made, tokenizer):
    size = tokenizer.vocabulary_size()
    shown = made["token_ids"][made["predicted"]]
    true = made["original"][made["predicted"]]
    masked, kept = shown == tokenizer.mask_token_id, shown == true
    # Any token is [MASK], or the token itself, once in V times.
    assert_part(masked.sum(), len(shown), 0.8 + 0.1 / size)
    assert_part(kept.sum(), len(shown), 0.1 + 0.1 / size)
    others = shown[~masked & ~kept]
    assert_part(len(others), len(shown), 0.1 - 0.2 / size)
    counts, _ = np.histogram(others, 100, (0, size))
    places, _ = np.histogram(np.arange(size), 100, (0, size))
    expected = places * len(others) / size
    assert scipy.stats.chisquare(counts, expected).pvalue > ALARM


def test_half_of_the_second_segments_are_from_elsewhere(made):
    elsewhere = made["next_sentence_labels"] == 1
    assert_part(elsewhere.sum(), EXAMPLES, 0.5)
    # Lengths do not give it away.
    for segment in (0, 1):
        inside = made["segment_ids"] == segment
        lengths = (inside & (made["padding_mask"] == 1)).sum(1)
        test = scipy.stats.ks_2samp(lengths[elsewhere], lengths[~elsewhere])
        assert test.pvalue > ALARM
