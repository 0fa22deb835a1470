"""The verb: from a data folder of text to a preset, in one stage or two."""

import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import re
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.masked_lm import FixedHeadMaskedLM
from tests.training import tiny
from training import pretrain
from training.corpus.tokenized import Document, write_shard
from training.masked_lm import configs
from training.masked_lm.task import MaskedLMTask

# KerasHub's TextEmbedder has a compile() of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

# The first of two stages: heads as large as its sequences are long.
FIRST_STAGE = {
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "head_size": 13,
    "sequence_length": 13,
    "steps": 200,
    "global_batch_size": 24,
    "learning_rate": 0.01,
    "warmup_steps": 10,
    "log_interval": 50,
    "evaluation_interval": 100,
    "checkpoint_interval": 100,
    "evaluation_examples": 61,
}

EXACT = {"dtype": "float64", "dropout": 0.0, "steps": 3}


def flags(data, workdir, **changes):
    return tiny.flags(tiny.pretraining(data, workdir, **changes), "small")


def failed(args, capsys):
    """The last line of a run that ends with status 1."""
    assert pretrain.main(args) == 1
    return tiny.error(capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of two words each: from one follows what is masked."""
    folder = tiny.write_text(tmp_path_factory.mktemp("data"))
    rng = np.random.default_rng(5)
    first = tiny.VOCABULARY.index(tiny.WORDS[0])

    def document(number):
        words = first + (number + np.array([0, 1])) % len(tiny.WORDS)
        lengths = rng.integers(3, 11, rng.integers(2, 5))
        return Document(rng.choice(words, lengths.sum()), lengths)

    shards = {
        split: [
            write_shard(
                folder, f"{split}-00000", [document(n) for n in range(count)]
            )
        ]
        for split, count in {"train": 97, "heldout": 47}.items()
    }
    tiny.rewrite(folder, shards=shards)
    return folder


@pytest.fixture(scope="module")
def first_stage(data, tmp_path_factory):
    """A finished run: `workdir`, what was `said`, and its standard output."""
    workdir = tmp_path_factory.mktemp("first") / "train"
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        assert pretrain.main(flags(data, workdir, **FIRST_STAGE)) == 0
    return types.SimpleNamespace(
        workdir=workdir, said=said.getvalue(), out=out.getvalue()
    )


def heldout(data, workdir):
    """The examples that a run evaluates on, without those that fill up."""
    task = MaskedLMTask(tiny.pretraining(data, workdir, **FIRST_STAGE))
    batches = list(
        task.evaluation_dataset(
            tf.distribute.InputContext()
        ).as_numpy_iterator()
    )
    examples = {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
    }
    real = examples["index"] >= 0
    return {name: values[real] for name, values in examples.items()}


def test_run_learns(data, first_stage):
    losses = [
        r["loss"] for r in tiny.metrics(first_stage.workdir) if "loss" in r
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]
    examples = heldout(data, first_stage.workdir)
    masked = examples["mask_ids"][examples["mask_weights"] == 1]
    most_frequent = np.bincount(masked).max() / len(masked)
    last = tiny.metrics(first_stage.workdir)[-1]
    assert last["heldout_masked_lm_accuracy"] > 2 * most_frequent


def test_preset_is_the_model_that_was_trained(data, first_stage):
    preset = str(first_stage.workdir / "preset")
    model = FixedHeadMaskedLM.from_preset(preset)
    assert model.next_sentence
    assert model.preprocessor.sequence_length == 13
    assert model.preprocessor.mask_selection_length == 3
    assert model.preprocessor.tokenizer.get_vocabulary() == tiny.VOCABULARY
    backbone = model.backbone
    assert (backbone.num_heads, backbone.head_size) == (3, 13)
    assert backbone.max_sequence_length == 17

    # The figures of the last evaluation, by hand.
    examples = heldout(data, first_stage.workdir)
    assert len(examples["index"]) == 61
    outputs = model({name: examples[name] for name in model.input})
    expected = {}
    for name, labels, weights in [
        ("masked_lm", examples["mask_ids"], examples["mask_weights"]),
        ("next_sentence", examples["next_sentence_labels"], np.ones(61)),
    ]:
        logits = np.array(outputs[name], "float64")
        right = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        losses = np.log(np.exp(logits).sum(-1)) - right
        for figure, values in {
            "loss": losses,
            "accuracy": logits.argmax(-1) == labels,
        }.items():
            expected[f"heldout_{name}_{figure}"] = np.average(
                values, weights=weights
            )
    last = tiny.metrics(first_stage.workdir)[-1]
    assert last == pytest.approx({"step": 200, **expected}, rel=1e-4)

    embedder = FixedHeadTextEmbedder.from_preset(preset)
    for ours, theirs in zip(
        backbone.weights, embedder.backbone.weights, strict=True
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_run_leaves_its_records(first_stage):
    workdir = first_stage.workdir
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    judged = {
        f"{head}_{figure}"
        for head in ("masked_lm", "next_sentence")
        for figure in ("loss", "accuracy")
    }
    trained = judged | {
        *("step", "loss", "gradient_norm", "learning_rate"),
        *("steps_per_second", "examples_per_second", "tokens_per_second"),
        "model_flops_utilization",
    }
    evaluated = {"step", *(f"heldout_{name}" for name in judged)}
    assert [(r["step"], r.keys()) for r in records] == [
        (0, evaluated),
        (50, trained),
        (100, trained),
        (100, evaluated),
        (150, trained),
        (200, trained),
        (200, evaluated),
    ]
    for record in records:
        assert np.isfinite(list(record.values())).all()
        if "loss" in record:
            assert record["loss"] == pytest.approx(
                record["masked_lm_loss"] + record["next_sentence_loss"]
            )
            rate = record["examples_per_second"] / record["steps_per_second"]
            assert rate == pytest.approx(24)
            assert 0 < record["model_flops_utilization"] < 1

    (file,) = (workdir / "summaries").glob("events*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert (trained | evaluated) - {"step"} <= tags

    config = json.loads((workdir / "config.json").read_text())
    assert config["masked_lm"]["max_predictions"] == 3
    described = json.loads((workdir / "preset" / "run.json").read_text())
    assert described == {"settings": config, "figures": records[-1]}
    assert (workdir / "checkpoints" / "ckpt-200.index").exists()


def test_a_pipe_gets_a_line_each_interval(first_stage):
    assert first_stage.out == ""
    updates = re.findall(
        r"^step (\d+) of 200: loss [\d.]+  steps/s [\d.,]+  "
        r"examples/s [\d,]+  tokens/s [\d,]+(?:  MFU \d+%)?  "
        r"ETA (\d+:\d\d:\d\d)$",
        first_stage.said,
        re.MULTILINE,
    )
    assert [int(step) for step, _ in updates] == [50, 100, 150, 200]
    assert updates[-1][1] == "0:00:00"
    assert re.search(
        r"^model: [\d,]+ parameters on CPU:0$", first_stage.said, re.M
    )
    assert "\x1b" not in first_stage.said
    assert "train |" not in first_stage.said


def test_finished_run_says_so(data, first_stage, capsys):
    workdir = first_stage.workdir
    before = (workdir / "metrics.jsonl").read_bytes()
    # How often it reports may change, and is not part of the run.
    changes = FIRST_STAGE | {"log_interval": 5}
    assert pretrain.main(flags(data, workdir, **changes)) == 0
    assert "finished before" in capsys.readouterr().err
    assert (workdir / "metrics.jsonl").read_bytes() == before


def test_another_run_is_refused(data, first_stage, tmp_path, capsys):
    changes = FIRST_STAGE | {"max_predictions": 2, "seed": 1}
    error = failed(flags(data, first_stage.workdir, **changes), capsys)
    assert "masked_lm.max_predictions (there 3, now 2)" in error
    assert "training.seed (there 0, now 1)" in error
    assert "head_size" not in error

    other = tiny.write_text(tmp_path / "other")
    error = failed(flags(other, first_stage.workdir, **FIRST_STAGE), capsys)
    assert "data_sha256" in error

    changes = FIRST_STAGE | {"init": first_stage.workdir / "preset"}
    error = failed(flags(data, first_stage.workdir, **changes), capsys)
    assert "init_sha256 (there None" in error


@pytest.mark.slow
def test_second_stage_starts_from_the_first(
    data, first_stage, tmp_path, capsys
):
    preset = first_stage.workdir / "preset"
    changes = FIRST_STAGE | {
        "sequence_length": 17,
        "init": preset,
        "dropout": 0.3,
        "steps": 1,
        "warmup_steps": 0,
        "learning_rate": 0.0,
    }
    assert pretrain.main(flags(data, tmp_path / "train", **changes)) == 0
    # Heads of 13 were enough for the first stage.
    assert "bottleneck" not in first_stage.said
    assert "heads of size 13" in capsys.readouterr().err
    first = FixedHeadMaskedLM.from_preset(str(preset))
    second = FixedHeadMaskedLM.from_preset(str(tmp_path / "train" / "preset"))
    assert second.preprocessor.sequence_length == 17
    for a, b in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"hidden_dim": 33, "head_size": 17},
            "head_size (there 13, now 17), hidden_dim (there 32, now 33)",
        ),
        ({"next_sentence": False}, "next_sentence"),
    ],
)
def test_init_of_another_shape(
    change, message, data, first_stage, tmp_path, capsys
):
    changes = FIRST_STAGE | {"init": first_stage.workdir / "preset"} | change
    error = failed(flags(data, tmp_path / "train", **changes), capsys)
    assert "`init`" in error
    assert message in error
    assert not (tmp_path / "train").exists()


def test_init_of_another_vocabulary(data, first_stage, tmp_path, capsys):
    other = tiny.write_text(tmp_path / "other")
    vocabulary = "\n".join([*tiny.VOCABULARY[:-1], "!", ""])
    (other / "vocabulary.txt").write_text(vocabulary)
    tiny.rewrite(
        other,
        vocabulary_sha256=hashlib.sha256(vocabulary.encode()).hexdigest(),
    )
    changes = FIRST_STAGE | {
        "init": first_stage.workdir / "preset",
        "global_batch_size": 6,
    }
    error = failed(flags(other, tmp_path / "train", **changes), capsys)
    assert "must have the vocabulary of the data" in error
    assert not (tmp_path / "train").exists()


def test_init_that_is_no_preset(data, tmp_path, capsys):
    init = tmp_path / "no"
    error = failed(flags(data, tmp_path / "train", init=init), capsys)
    assert "`init` must be a preset folder" in error
    assert f"Received: {str(init)!r}" in error
    assert not (tmp_path / "train").exists()


def test_init_with_a_class_that_is_not_registered(
    data, first_stage, tmp_path, capsys
):
    init = shutil.copytree(first_stage.workdir / "preset", tmp_path / "preset")
    task = json.loads((init / "task.json").read_text())
    task["config"]["backbone"] |= {"class_name": "C", "registered_name": "C"}
    (init / "task.json").write_text(json.dumps(task))
    changes = FIRST_STAGE | {"init": init}
    error = failed(flags(data, tmp_path / "train", **changes), capsys)
    assert f"`init` {init} cannot be loaded (TypeError: Could not" in error
    assert not (tmp_path / "train").exists()


@pytest.fixture(scope="module")
def exact(data, tmp_path_factory):
    """The records of a run in float64 without dropout."""
    workdir = tmp_path_factory.mktemp("exact")
    assert pretrain.main(flags(data, workdir, **EXACT)) == 0
    return tiny.metrics(workdir)


def test_losses_begin_at_those_of_guessing(first_stage):
    begin = tiny.metrics(first_stage.workdir)[1]
    guess = {"masked_lm": len(tiny.VOCABULARY), "next_sentence": 2}
    for name, choices in guess.items():
        assert begin[f"{name}_loss"] == pytest.approx(np.log(choices), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"packed": False},
        {"accumulation_steps": 3},
        {"packed": False, "accumulation_steps": 3},
        {"packed": False, "accumulation_steps": 3, "jit_compile": True},
    ],
    ids=["padded", "in_parts", "padded_in_parts", "compiled_padded_in_parts"],
)
def test_other_ways_to_compute_are_the_same(change, exact, data, tmp_path):
    assert pretrain.main(flags(data, tmp_path, **EXACT, **change)) == 0
    records = tiny.metrics(tmp_path)
    assert len(exact) == 5
    for one, other in zip(exact, records, strict=True):
        # The loop adds up in float32, whatever the model computes in.
        assert other == pytest.approx(one, rel=1e-6)
    assert records[-1] == pytest.approx(exact[-1], rel=1e-12)


@pytest.mark.slow
def test_one_objective_and_whole_words(data, tmp_path):
    changes = {"next_sentence": False, "whole_word": True, "steps": 3}
    assert pretrain.main(flags(data, tmp_path, **changes)) == 0
    *_, trained, evaluated = tiny.metrics(tmp_path)
    assert trained["loss"] == trained["masked_lm_loss"]
    assert evaluated.keys() == {
        *("step", "heldout_masked_lm_loss", "heldout_masked_lm_accuracy")
    }
    model = FixedHeadMaskedLM.from_preset(str(tmp_path / "preset"))
    assert not model.next_sentence
    assert not model.backbone.pooler


def test_command_line_changes_the_named_run():
    args = ["--data", "d", "--workdir", "w", "--init", "i", "--whole_word"]
    config = pretrain.parse(["--config", "paper_stage2", *args])
    assert config.masked_lm == dataclasses.replace(
        configs.NAMED_RUNS["paper_stage2"]().masked_lm,
        init=pathlib.Path("i"),
        whole_word=True,
    )
    assert config.masked_lm.sequence_length > config.model.head_size
    first = configs.NAMED_RUNS["paper_stage1"]()
    assert config.model == first.model
    assert first.masked_lm.sequence_length == first.model.head_size


def test_help_lists_runs_and_how_intervals_relate(capsys):
    with pytest.raises(SystemExit):
        pretrain.main(["--help"])
    shown = capsys.readouterr().out
    for name in (*configs.NAMED_RUNS, "--accumulation_steps", "--init"):
        assert name in shown
    shown = " ".join(shown.replace("│", " ").split())
    assert "speed; divides the other intervals" in shown
    assert "two evaluations, a multiple of log_interval" in shown
    assert "two checkpoints, a multiple of log_interval" in shown


def test_an_interval_that_log_interval_does_not_divide(data, tmp_path, capsys):
    args = flags(data, tmp_path / "train", log_interval=3, steps=7)
    error = failed([*args, "--evaluation_interval", "10"], capsys)
    assert "evaluation_interval=10, log_interval=3" in error
    error = failed([*args, "--log_interval", "0"], capsys)
    assert "`log_interval` must be positive. Received: 0" in error
