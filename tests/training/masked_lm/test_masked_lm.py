"""Pre-training: from a data folder of text to a preset, in one stage or two."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from tests.training import tiny
from tests.training.task_tests import Case, CorpusTaskTests, cross_entropy
from training import pretrain
from training.corpus.tokenized import Document
from training.masked_lm.configs import NAMED_RUNS
from training.masked_lm.task import MaskedLMTask

# The first of two stages: heads as large as its sequences are long.
CASE = Case(
    pretrain,
    NAMED_RUNS,
    tiny.pretraining,
    {
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "head_size": 13,
        "sequence_length": 13,
        "steps": 100,
        "global_batch_size": 24,
        "learning_rate": 0.01,
        "warmup_steps": 10,
        "log_interval": 50,
        "evaluation_interval": 100,
        "checkpoint_interval": 100,
        "evaluation_examples": 61,
    },
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of two words each: from one follows what is masked."""
    rng = np.random.default_rng(5)
    first = tiny.VOCABULARY.index(tiny.WORDS[0])

    def document(number):
        words = first + (number + np.array([0, 1])) % len(tiny.WORDS)
        lengths = rng.integers(3, 11, rng.integers(2, 5))
        return Document(rng.choice(words, lengths.sum()), lengths)

    shards = {
        name: [document(n) for n in range(count)]
        for name, count in {"train-00000": 97, "heldout-00000": 47}.items()
    }
    return tiny.write_shards(tmp_path_factory.mktemp("data"), shards)


class TestVerb(CorpusTaskTests):
    case = CASE
    model = FixedHeadMaskedLM
    other = {"max_predictions": 2}
    ways = (
        {"packed": False},
        {"accumulation_steps": 3},
        {"packed": False, "accumulation_steps": 3, "jit_compile": True},
    )
    refused = [
        ({"sequence_length": 19}, "`sequence_length` .* Received: 19"),
        ({"max_predictions": 0}, "`max_predictions` .* Received: 0"),
        ({"mask_token_rate": 1.5}, "`mask_token_rate` .* Received: 1.5"),
        ({"global_batch_size": 0}, "`global_batch_size` .* Received: 0"),
        ({"accumulation_steps": 5}, "`accumulation_steps` .* Received: 5"),
        ({"log_interval": 3}, "evaluation_interval=100, log_interval=3"),
    ]


@pytest.fixture(scope="module")
def heldout(data, tmp_path_factory):
    """The examples that a run evaluates on, without those that fill up."""
    task = MaskedLMTask(CASE.config(data, tmp_path_factory.mktemp("task")))
    dataset = task.evaluation_dataset(tf.distribute.InputContext())
    batches = list(dataset.as_numpy_iterator())
    examples = {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
    }
    real = examples["index"] >= 0
    return {name: values[real] for name, values in examples.items()}


def test_run_learns(heldout, run):
    first, *_ = trained = [r for r in run.records if "loss" in r]
    assert trained[-1]["loss"] < 0.85 * first["loss"]
    # It begins with guessing.
    choices = {"masked_lm": len(tiny.VOCABULARY), "next_sentence": 2}
    for name, count in choices.items():
        assert first[f"{name}_loss"] == pytest.approx(np.log(count), rel=0.1)
    masked = heldout["mask_ids"][heldout["mask_weights"] == 1]
    most_frequent = np.bincount(masked).max() / len(masked)
    assert run.records[-1]["heldout_masked_lm_accuracy"] > 2 * most_frequent


def test_preset_is_the_model_that_was_trained(heldout, run):
    model = FixedHeadMaskedLM.from_preset(str(run.preset))
    assert model.next_sentence
    assert model.preprocessor.sequence_length == 13
    assert model.preprocessor.mask_selection_length == 3
    assert model.preprocessor.tokenizer.get_vocabulary() == tiny.VOCABULARY
    backbone = model.backbone
    assert (backbone.num_heads, backbone.head_size) == (3, 13)
    assert backbone.max_sequence_length == 17

    # The metrics of the last evaluation, by hand.
    assert len(heldout["index"]) == 61
    outputs = model({name: heldout[name] for name in model.input})
    expected = {"step": 100}
    for name, labels, weights in [
        ("masked_lm", heldout["mask_ids"], heldout["mask_weights"]),
        ("next_sentence", heldout["next_sentence_labels"], np.ones(61)),
    ]:
        logits = np.array(outputs[name])
        losses = cross_entropy(logits, labels)
        hits = logits.argmax(-1) == labels
        for figure, values in (("loss", losses), ("accuracy", hits)):
            expected[f"heldout_{name}_{figure}"] = np.average(
                values, weights=weights
            )
    assert run.records[-1] == pytest.approx(expected, rel=1e-4)

    embedder = FixedHeadTextEmbedder.from_preset(str(run.preset))
    for ours, theirs in zip(
        backbone.weights, embedder.backbone.weights, strict=True
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_pipe_gets_a_line_each_interval(run):
    assert run.out == ""
    steps = re.findall(r"^step (\d+) of 100: loss ", run.said, re.MULTILINE)
    assert steps == ["50", "100"]
    assert re.search(r"^model: [\d,]+ parameters on CPU:0$", run.said, re.M)
    # Heads of 13 are enough for sequences of 13.
    assert "bottleneck" not in run.said


def test_other_data_or_another_start_is_refused(data, run, tmp_path, capsys):
    other = tiny.write_text(tmp_path / "other")
    assert "data_sha256" in CASE.error(capsys, other, run.workdir)
    error = CASE.error(capsys, data, run.workdir, init=run.preset)
    assert "init_sha256 (there None" in error


@pytest.mark.parametrize(
    "damage, change, message",
    [
        (
            None,
            {"hidden_dim": 33, "head_size": 17},
            r"head_size \(there 13, now 17\), hidden_dim \(there 32, now 33\)",
        ),
        (None, {"next_sentence": False}, "next_sentence"),
        (shutil.rmtree, {}, "must be a preset folder"),
    ],
)
def test_init_that_does_not_fit(
    damage, change, message, data, run, tmp_path, capsys
):
    init = shutil.copytree(run.preset, tmp_path / "preset")
    if damage:
        damage(init)
    error = CASE.error(capsys, data, tmp_path / "run", init=init, **change)
    assert "`init`" in error and str(init) in error
    assert re.search(message, error), error
    assert not (tmp_path / "run").exists()


def test_init_of_another_vocabulary(run, tmp_path, capsys):
    other = tiny.write_text(tmp_path / "other")
    vocabulary = "\n".join([*tiny.VOCABULARY[:-1], "!", ""])
    (other / "vocabulary.txt").write_text(vocabulary)
    sha256 = hashlib.sha256(vocabulary.encode()).hexdigest()
    tiny.rewrite(other, vocabulary_sha256=sha256)
    changes = {"init": run.preset, "global_batch_size": 6}
    error = CASE.error(capsys, other, tmp_path / "run", **changes)
    assert "must have the vocabulary of the data" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_objective_and_whole_words(data, tmp_path):
    changes = {"next_sentence": False, "whole_word": True}
    run = CASE.train(data, tmp_path, **changes)
    assert run.records[-1].keys() == {
        *("step", "heldout_masked_lm_loss", "heldout_masked_lm_accuracy")
    }
    model = FixedHeadMaskedLM.from_preset(str(run.preset))
    assert not model.next_sentence and not model.backbone.pooler


def test_data_without_held_out_documents(tmp_path, capsys):
    folder, workdir = tiny.write_text(tmp_path / "data"), tmp_path / "run"
    shards = json.loads((folder / "manifest.json").read_text())["shards"]
    tiny.rewrite(folder, shards=shards | {"heldout": []})
    error = CASE.error(capsys, folder, workdir)
    assert f"`data` {str(folder)!r} has no held-out documents" in error
    assert not workdir.exists()


@pytest.mark.parametrize("next_sentence", [True, False])
def test_operations_of_an_update(data, tmp_path, next_sentence):
    task = CASE.task(data, tmp_path, num_layers=2, next_sentence=next_sentence)
    predictions, tokens, examples = 13, 97, 7
    length, width, heads, inner = 17, 11, 3 * 17, 19
    # A multiplication and an addition in each product.
    keys_and_values = query_and_output = 2 * (2 * width * heads)
    scores_and_sums = 2 * (2 * length * heads)
    feed_forward = 2 * (2 * width * inner)
    rest = query_and_output + scores_and_sums + feed_forward
    head = 2 * width * width + 2 * width * len(tiny.VOCABULARY)
    # The last block is computed where something is predicted: at the masks, and
    # at the first token of each example whose next sentence is judged.
    positions = predictions + (examples if next_sentence else 0)
    forward = (
        tokens * (keys_and_values + rest)
        + tokens * keys_and_values
        + positions * rest
        + predictions * head
    )
    totals = {"predictions": 13.0, "tokens": 97.0, "examples": 7.0}
    assert task.flops(totals) == pytest.approx(3 * forward)
