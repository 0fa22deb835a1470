"""Distillation into a shrunk encoder, and from another framework's teacher."""

import json
import pathlib
import typing

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from scipy.special import rel_entr

from keras_fixedhead import FixedHeadTextEmbedder
from tests.training import tiny
from tests.training.task_tests import Case, TaskTests, first_batch, read_card
from training import distill
from training.distillation.configs import NAMED_RUNS
from training.distillation.teacher import read_embeddings
from training.engine.preset import SHAPE, preset_sha256
from training.engine.strategy import get_strategy


class Inputs(typing.NamedTuple):
    texts: pathlib.Path
    teacher: pathlib.Path | None
    init: pathlib.Path
    cache: pathlib.Path


def make(data, workdir, **changes):
    shape = {name: None for name in SHAPE}
    changes = {**shape, "init": data.init, "cache": data.cache, **changes}
    return tiny.distillation(data.texts, data.teacher, workdir, **changes)


CASE = Case(
    distill,
    NAMED_RUNS,
    make,
    {
        "state_weight": 20.0,
        "attention_weight": 10.0,
        "steps": 9,
        "learning_rate": 3e-3,
        "dropout": 0.0,
        # All texts, whose losses differ much.
        "global_batch_size": 36,
    },
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    # Sliced: there is much to learn.
    tiny.write_shrunk(folder, "--ridge", "1e6", pooling_mode="mean")
    names = ("texts.txt", "teacher", "init", "cache")
    return Inputs(*(folder / name for name in names))


class TestVerb(TaskTests):
    case = CASE
    other = {"state_weight": 0.5}
    ways = ({"packed": False}, {"packed": False, "jit_compile": True})
    tolerance = 1e-3  # the teacher computes in float32
    refused = [
        ({"state_weight": -1.0}, "`state_weight` .* Received: -1.0"),
        ({"attention_weight": -1.0}, "`attention_weight` .* Received: -1.0"),
        ({"teacher_embeddings": "a.npy"}, "Pass one of `teacher` and "),
        ({"hidden_dim": 5}, r"`init` .* hidden_dim \(there 7, now 5\)"),
    ]


def test_run_learns(run, data):
    records = [record for record in run.records if "loss" in record]
    for name in ("loss", "state_loss", "attention_loss"):
        losses = [record[name] for record in records]
        assert np.mean(losses[-3:]) < np.mean(losses[:3])
    held = [record for record in run.records if "heldout_cosine" in record]
    assert len(held) == 4 and min(r["heldout_cosine"] for r in held) > 0.9
    # The preset can be healed again.
    origin = (run.preset / "origin.json").read_bytes()
    assert origin == (data.init / "origin.json").read_bytes()
    for record in records:
        parts = record["embedding_loss"] + record["similarity_loss"]
        total = parts + 20.0 * record["state_loss"]
        total += 10.0 * record["attention_loss"]
        assert record["loss"] == pytest.approx(total, rel=1e-4)


def test_model_cards_name_the_sources(run, data):
    shrunk, student, encoder = (
        read_card(path)[0]
        for path in (data.init, run.preset, run.preset / "query_encoder")
    )
    assert "- source: `teacher`" in shrunk
    assert "- calibration: `texts.txt`" in shrunk
    assert any("from `teacher` by `training.shrink`" in x for x in shrunk)
    for lines in (student, encoder):
        assert any("Made from `init` and `teacher` by" in x for x in lines)
        assert "- vocabulary: of `init` and `teacher`" in lines
        assert "- training data of `teacher`: fill in" in lines
    checksum = preset_sha256(data.teacher, "teacher")
    assert f"- teacher_sha256: {checksum}" in student
    assert "- training examples: 36" in student
    assert "- held-out examples: 7" in student
    assert "The folder above has those of the model there." in encoder


@pytest.fixture(scope="module")
def task(data, tmp_path_factory):
    changes = {"state_weight": 2.0, "attention_weight": 3.0, "dropout": 0.0}
    with get_strategy("one_device").scope():
        return CASE.task(data, tmp_path_factory.mktemp("task"), **changes)


def test_losses_by_hand(task, data):
    batch = first_batch(task)
    inputs = task.model_inputs(batch)
    teacher, student = (
        FixedHeadTextEmbedder.from_preset(str(path))
        for path in (data.teacher, data.init)
    )
    origin = json.loads((data.init / "origin.json").read_text())
    real = inputs["padding_mask"].numpy() == 1
    (x, found), (y, wanted) = (
        states_and_scores(model.backbone, inputs)
        for model in (student, teacher)
    )
    wanted = wanted[origin["layers"][0]].swapaxes(1, 2)[real]
    found = found[0].swapaxes(1, 2)[real]  # [P, N, S]
    divergence = rel_entr(wanted, found).sum(-1).mean()
    x, y = x[1][real], y[2][real][:, origin["channels"]]
    errors = np.square(x - y).sum(-1) / np.square(y).sum(-1)
    _, parts = get_strategy("one_device").run(
        lambda: task.loss(batch, task.totals(batch))
    )
    expected = {"state_loss": errors.mean(), "attention_loss": divergence}
    assert min(expected.values()) > 1e-4
    found = {name: float(parts[name]) for name in expected}
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-3)
    # The matrix leads to the teacher's components.
    texts = task._training.texts
    for model in (student, teacher):
        model.preprocessor.sequence_length = 13
    rows, wanted = (
        model.encode_text(texts, verbose=0) for model in (student, teacher)
    )
    expected = fitted(rows, wanted) @ task._components
    found = task.model.encode_text(texts, verbose=0)
    np.testing.assert_allclose(found, unit(rows @ expected), atol=1e-4)


def fitted(rows, wanted):
    """Ridge regression as least squares with rows of zeros."""
    penalty = np.sqrt(1e-3 * np.square(rows).sum() / 7) * np.eye(7)
    matrix, *_ = np.linalg.lstsq(
        np.concatenate([rows, penalty]),
        np.concatenate([wanted, 0 * wanted[:7]]),
    )
    return matrix


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def states_and_scores(backbone, inputs):
    """All states and attention scores, by the layers themselves."""
    tokens = backbone.token_embedding(inputs["token_ids"])
    x = tokens + backbone.position_embedding(tokens)
    x = x + backbone.segment_embedding(inputs["segment_ids"])
    states, scores = [backbone.embeddings_layer_norm(x)], []
    mask = inputs["padding_mask"]
    for block in backbone.transformer_layers:
        x = states[-1]
        _, found = block.attention(
            x, value_mask=mask, return_attention_scores=True
        )
        states.append(block(x, padding_mask=mask))
        scores.append(found.numpy())
    return [state.numpy() for state in states], scores


def test_queries_in_the_teachers_space(run, task):
    student, encoder = (
        FixedHeadTextEmbedder.from_preset(str(path))
        for path in (run.preset, run.preset / "query_encoder")
    )
    plain = FixedHeadTextEmbedder(
        student.backbone, student.preprocessor, pooling_mode="mean"
    )
    assert (student.embedding_size, encoder.embedding_size) == (7, 13)
    rows = plain.encode_text(task._training.texts, verbose=0)
    matrix = fitted(rows, task._training.embeddings)
    found, components, reduced = (
        model.encode_text(tiny.texts(), verbose=0)
        for model in (encoder, student, plain)
    )
    np.testing.assert_allclose(found, unit(reduced @ matrix), atol=1e-4)
    # Fitted anew to the states after training.
    matrix = matrix @ task._components
    np.testing.assert_allclose(components, unit(reduced @ matrix), atol=1e-4)


def test_another_teacher_is_refused(data, tmp_path, capsys):
    tiny.embedder(1).save_to_preset(str(tmp_path / "other"))
    other = data._replace(teacher=tmp_path / "other")
    error = CASE.error(capsys, other, tmp_path / "run")
    assert "`teacher` must be the preset that `init` was shrunk from" in error
    other = data._replace(init=data.teacher)
    error = CASE.error(capsys, other, tmp_path / "run")
    assert "need an `init` that `training.shrink` wrote" in error


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_embeddings_from_a_file(kind, tmp_path):
    texts = tiny.texts()
    rows = np.random.default_rng(3).normal(size=(len(texts), 11))
    rows = rows.astype("float32")
    path = tmp_path / f"teacher.{kind}"
    # A table has the texts beside them, in any order.
    order = slice(None) if kind == "npy" else slice(None, None, -1)
    write(path, texts[order], rows[order])
    found, _ = read_embeddings(path, texts)
    np.testing.assert_allclose(
        found, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6
    )
    write(path, texts[:-1], rows[:-1])
    wanted = "a row for each of the 43 texts" if kind == "npy" else "It lacks"
    with pytest.raises(ValueError, match=wanted):
        read_embeddings(path, texts)
    write(path, texts, 0 * rows)
    with pytest.raises(ValueError, match="zero or not finite"):
        read_embeddings(path, texts)
    with pytest.raises(ValueError, match=r"a .npy or .parquet file. .*a.txt"):
        read_embeddings(tmp_path / "a.txt", texts)


def test_a_teacher_of_another_framework(task, data, tmp_path, capsys):
    path = tmp_path / "teacher.npy"
    teacher = FixedHeadTextEmbedder.from_preset(str(data.teacher))
    teacher.preprocessor.sequence_length = 13
    np.save(path, teacher.encode_text(tiny.texts(), verbose=0))
    given = data._replace(teacher=None)
    with get_strategy("one_device").scope():
        ours = CASE.task(given, tmp_path, teacher_embeddings=path)
    assert ours._texts == task._texts
    for one, two in (
        (ours._training.embeddings, task._training.embeddings),
        (ours._components, task._components),
    ):
        np.testing.assert_allclose(one, two, atol=1e-5)
    error = CASE.error(capsys, given, tmp_path / "run", state_weight=1.0)
    assert "Pass one of" in error
    changes = {name: 0.0 for name in ("state_weight", "attention_weight")}
    changes |= {"teacher_embeddings": path, "random_texts": 1}
    error = CASE.error(capsys, given, tmp_path / "run", **changes)
    assert "`random_texts` needs `teacher` itself" in error


def write(path, texts, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
        return
    table = {"text": texts, "embedding": rows.tolist()}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
