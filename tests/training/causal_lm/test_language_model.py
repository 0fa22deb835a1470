"""The verb that trains a language model, and what it counts and predicts."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadCausalLM, FixedHeadTokenizer, presets
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.training import numbered, tiny
from tests.training.task_tests import (
    Case,
    CorpusTaskTests,
    cross_entropy,
    first_batch,
)
from training import language_model
from training.causal_lm.configs import NAMED_RUNS, CausalLMConfig
from training.causal_lm.task import LanguageModelBatches
from training.corpus.tokenized import Document, write_shard

START, END = map(SPECIAL_TOKENS.index, ("[CLS]", "[SEP]"))
ONE = tf.distribute.InputContext()
# That the held-out shard has, its manifest says.
HELDOUT_WORDS = 173
CASE = Case(
    language_model,
    NAMED_RUNS,
    tiny.language_model,
    {
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "steps": 60,
        "global_batch_size": 32,
        "learning_rate": 0.02,
        "warmup_steps": 10,
        "log_interval": 30,
        "evaluation_interval": 60,
        "checkpoint_interval": 60,
        "evaluation_examples": 1_000,
    },
)


def lengths(count):
    """Of documents of one chunk of 12 tokens to three."""
    return [3 + 7 * number % 31 for number in range(count)]


def document(number, length):
    """Each word is followed by the next one."""
    words = (number + np.arange(length)) % len(tiny.WORDS)
    return Document(len(SPECIAL_TOKENS) + words, np.array([length]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tiny.write_text(tmp_path_factory.mktemp("data"))
    shards = {}
    for split, count in {"train": 97, "heldout": 23}.items():
        made = map(document, range(count), lengths(count))
        entry = write_shard(folder, f"{split}-00000", list(made))
        shards[split] = [entry | {"words": HELDOUT_WORDS}]
    tiny.rewrite(folder, shards=shards)
    return folder


class TestVerb(CorpusTaskTests):
    case = CASE
    model = FixedHeadCausalLM
    other = {"sequence_length": 11}
    ways = (
        {"packed": False},
        {"accumulation_steps": 4},
        {"packed": False, "accumulation_steps": 4, "jit_compile": True},
    )
    refused = [
        ({"sequence_length": 1}, "`sequence_length` .* least 2. Received: 1"),
        ({"sequence_length": 19}, "`sequence_length` .*=17. Received: 19"),
        ({"shuffle_tokens": 0}, "`shuffle_tokens` .* Received: 0"),
        ({"evaluation_examples": 0}, "`evaluation_examples` .* Received: 0"),
    ]


def test_run_learns(run):
    first, *trained, last = run.records
    assert first["step"] == 0
    assert first["heldout_accuracy"] < last["heldout_accuracy"]
    assert [record["step"] for record in trained] == [30, 60]
    losses = [record["loss"] for record in trained]
    assert np.log(len(tiny.VOCABULARY)) > losses[0] > losses[-1]
    # A bigram knows the next word, not where a document ends.
    assert last["heldout_accuracy"] > 0.8
    assert last["heldout_perplexity_per_word_piece"] < 3


def test_figures_are_those_of_the_preset_by_hand(run):
    model = FixedHeadCausalLM.from_preset(str(run.preset))
    assert model.preprocessor.sequence_length == 13
    rows = []
    for number, length in enumerate(lengths(23)):
        tokens = document(number, length).token_ids
        pieces = -(-length // 12)
        bounds = [length * piece // pieces for piece in range(pieces + 1)]
        for start, end in zip(bounds, bounds[1:]):
            rows.append([START, *tokens[start:end], *[END] * (end == length)])
    ids, real = np.zeros((2, len(rows), 14), "int32")
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        real[row, : len(tokens)] = 1
    labels, predicted = ids[:, 1:], real[:, 1:]
    logits = np.array(
        model({"token_ids": ids[:, :-1], "padding_mask": predicted})
    )
    losses = cross_entropy(logits, labels)[predicted == 1]
    assert len(losses) == sum(lengths(23)) + 23
    assert run.records[-1] == pytest.approx(
        {
            "step": 60,
            "heldout_loss": losses.mean(),
            "heldout_accuracy": np.mean(
                (logits.argmax(-1) == labels)[predicted == 1]
            ),
            "heldout_perplexity_per_word_piece": np.exp(losses.mean()),
            # Each end counts as a word.
            "heldout_perplexity_per_word": np.exp(
                losses.sum() / (HELDOUT_WORDS + 23)
            ),
        },
        rel=1e-4,
    )
    model.compile(sampler="greedy")
    made = model.generate("red green blue", max_length=7)
    assert made == " ".join(tiny.WORDS[:6])


@pytest.mark.parametrize("packed", [True, False])
def test_loss_is_the_mean_over_the_global_batch(data, tmp_path, packed):
    changes = {"packed": packed, "dtype": "float64", "dropout": 0.0}
    task = CASE.task(data, tmp_path, **changes)
    for variable in task.model.trainable_variables:
        variable.assign(variable.value * 7)  # or all is as likely
    batch = first_batch(task)
    ids, labels, real = (
        batch[name].numpy() for name in ("token_ids", "labels", "padding_mask")
    )
    # As if a second replica had as much again.
    totals = {name: 2 * value for name, value in task.totals(batch).items()}
    assert totals["tokens"] == 2 * real.sum()
    loss, metrics = task.loss(batch, totals)
    logits = np.array(task.model({"token_ids": ids, "padding_mask": real}))
    losses = cross_entropy(logits, labels)
    assert np.ptp(losses) > 0.5
    assert float(loss) == pytest.approx(np.average(losses, weights=real) / 2)
    hits = np.average(logits.argmax(-1) == labels, weights=real)
    assert float(metrics["accuracy"]) == pytest.approx(hits / 2)


def test_operations_of_an_update(data, tmp_path):
    task = CASE.task(data, tmp_path, num_layers=2)
    width, heads, inner, length = 11, 3 * 13, 19, 97 / 7
    block = 4 * (2 * width * heads) + 2 * (2 * length * heads)
    block += 2 * (2 * width * inner)
    forward = 2 * block + 2 * width * len(tiny.VOCABULARY)
    assert task.flops({"tokens": 97.0, "examples": 7.0}) == pytest.approx(
        3 * 97 * forward
    )


LENGTHS = [[2, 9, 30], [8, 17, 5], [24, 16], [7, 65]]
COUNT = sum(map(sum, LENGTHS))
TOKENIZER = FixedHeadTokenizer(
    [*SPECIAL_TOKENS, *(f"w{number}" for number in range(COUNT))]
)


@pytest.mark.parametrize(
    "packed", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_each_token_is_predicted_once_in_an_epoch(tmp_path, packed):
    shards = numbered.write(tmp_path, LENGTHS).shards
    # Windows of 12 and of 15 chunks.
    config = CausalLMConfig(sequence_length=9, shuffle_tokens=100)
    batches = LanguageModelBatches(config, 1, TOKENIZER, 3, packed)
    made = batches.training(shards, ONE, 0).take(2 * 27)
    made, orders = list(made.as_numpy_iterator()), []
    for epoch in (made[:27], made[27:]):
        predicted, order = [], []
        for batch in epoch:
            (ids,), (labels,), (real,) = (
                batch[name] for name in ("token_ids", "labels", "padding_mask")
            )
            size = real.sum()
            assert len(ids) == (size if packed else 9)
            assert real.tolist() == [1] * size + [0] * (len(ids) - size)
            assert ids[0] == START
            assert ids[1:size].tolist() == labels[: size - 1].tolist()
            assert not ids[size:].any() and not labels[size:].any()
            predicted += labels[:size].tolist()
            order.append(labels[0])
        assert sorted(predicted) == sorted(
            [END] * 10 + [len(SPECIAL_TOKENS) + n for n in range(COUNT)]
        )
        # An end follows the last token of a document.
        before = {
            predicted[place - 1]
            for place, token in enumerate(predicted)
            if token == END
        }
        sizes = np.concatenate([shard.document_lengths for shard in shards])
        assert before == set(np.cumsum(sizes) + len(SPECIAL_TOKENS) - 1)
        orders.append(order)
    assert orders[0] != orders[1] and set(orders[0]) == set(orders[1])


def test_a_folder_without_words(tmp_path, capsys):
    folder = tiny.write_text(tmp_path / "data")
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    del shards["heldout"][0]["words"]
    tiny.rewrite(folder, shards=shards)
    error = CASE.error(capsys, folder, tmp_path / "run")
    assert re.search("`data` .* how many words .* --overwrite", error)


def test_init_is_a_language_model(data, tmp_path, capsys):
    init = tmp_path / "embedder"
    tiny.embedder().save_to_preset(str(init))
    error = CASE.error(capsys, data, tmp_path / "run", init=init)
    assert "`init` must be a preset of a FixedHeadCausalLM." in error
    assert "TextEmbedder" in error


def test_lm1b_is_the_papers_shape():
    config = tiny.changed(NAMED_RUNS["lm1b"](), num_heads=70)
    shape = presets.shape("lm1b_d256_p32_h70")
    for name, value in vars(config.model).items():
        assert value == shape.get(name, value)
