"""Distillation: the verb, the losses by hand, and its errors."""

import functools
import pathlib
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from tests.keras_fixedhead.test_losses import (
    numpy_divergence,
    numpy_relation_loss,
    numpy_softmax,
)
from tests.training import tiny
from tests.training.task_tests import Case, TaskTests, first_batch
from training import distill
from training.distillation.configs import NAMED_RUNS
from training.distillation.task import DistillationTask, shared_neighbours
from training.engine.strategy import get_strategy

# KerasHub's TextEmbedder has a compile() of its own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

PROMPTS = {"query": "one two ", "document": ""}

# Of each kind one, with numbers that tell them apart.
LOSSES = {
    "embedding_weight": 2.0,
    "similarity_weight": 0.7,
    "attention_weight": 0.3,
    "similarity_temperature": 0.1,
    "relation_heads": 3,
}


class Inputs(typing.NamedTuple):
    """What a run reads."""

    texts: pathlib.Path
    teacher: pathlib.Path
    cache: pathlib.Path  # what the teacher computes, once for all tests


def make(data, workdir, **changes):
    changes = {"cache": data.cache, **changes}
    return tiny.distillation(data.texts, data.teacher, workdir, **changes)


CASE = Case(
    distill,
    NAMED_RUNS,
    make,
    {**LOSSES, "prompt": "query", "steps": 9, "learning_rate": 0.01},
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    inputs = Inputs(folder / "texts.txt", folder / "teacher", folder / "cache")
    tiny.write_texts(inputs.texts)
    tiny.embedder(prompts=PROMPTS).save_to_preset(str(inputs.teacher))
    return inputs


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return CASE.train(data, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def make_task(data, tmp_path_factory):
    """Built tasks, one of each kind, that start with the same weights."""
    workdir = tmp_path_factory.mktemp("tasks")

    @functools.cache
    def made(**changes):
        changes = {"dropout": 0.0, **LOSSES, **changes}
        keras.utils.set_random_seed(3)
        with get_strategy("one_device").scope():
            return CASE.task(data, workdir, **changes)

    return made


class TestVerb(TaskTests):
    case = CASE
    required = ("--teacher", "t")
    other = {"similarity_weight": 0.5}
    ways = ({"packed": False}, {"packed": False, "jit_compile": True})
    tolerance = 1e-3  # the teacher computes in float32
    refused = [
        ({"accumulation_steps": 2}, "`accumulation_steps` .* Received: 2"),
        ({"sequence_length": 2}, "`sequence_length` .* Received: 2"),
        ({"sequence_length": 19}, "max_sequence_length=17. Received: 19"),
        (
            {"sequence_length": 19, "max_sequence_length": 23},
            "`sequence_length` .* teacher, 17. Received: 19",
        ),
        ({"embedding_weight": -0.5}, "at least 0. .*'embedding': -0.5"),
        (
            {"embedding_weight": 0.0, "similarity_weight": 0.0},
            "`embedding_weight` or `similarity_weight` .*'attention': 0.3",
        ),
        ({"similarity_temperature": 0.0}, "`similarity_temperature` .*: 0.0"),
        ({"prompt": "title"}, "`prompt` .*document, query.*'title'"),
        ({"relation_heads": 2}, "teacher, 45, .* student, 15. Received: 2"),
        ({"relation_heads": 0}, "`relation_heads` .* Received: 0"),
        ({"validation_texts": 1}, "`validation_texts` .* Received: 1"),
        ({"validation_texts": 43}, "the 43 different texts .* Received: 43"),
        ({"global_batch_size": 37}, "`global_batch_size` .* 36. Received: 37"),
    ]


def losses_of(task, batch):
    """Its loss, and the losses it is made of."""

    def loss():
        return task.loss(batch, task.totals(batch))

    loss, parts = get_strategy("one_device").run(tf.function(loss))
    return {"loss": float(loss)} | {n: float(v) for n, v in parts.items()}


def components(vectors, size):
    """The first right singular vectors, the largest number positive."""
    _, _, rows = np.linalg.svd(vectors.astype("float64"))
    signs = [np.sign(row[np.abs(row).argmax()]) for row in rows]
    return (rows * np.array(signs)[:, None])[:size].T


def encode(preset, texts, prompt=None, length=13):
    embedder = FixedHeadTextEmbedder.from_preset(str(preset))
    embedder.preprocessor.sequence_length = length
    return embedder.encode_text(texts, prompt=prompt, verbose=0)


def test_run_learns(run):
    records = run.records
    trained = [record for record in records if "loss" in record]
    assert len(trained) == 9
    for name in ("loss", "embedding_loss", "similarity_loss", "attention_loss"):
        losses = [record[name] for record in trained]
        assert np.mean(losses[-3:]) < np.mean(losses[:3]), name
    for record in trained:
        total = sum(
            LOSSES[f"{name}_weight"] * record[f"{name}_loss"]
            for name in ("embedding", "similarity", "attention")
        )
        assert record["loss"] == pytest.approx(total, rel=1e-4)
    cosines = [r["heldout_cosine"] for r in records if "heldout_cosine" in r]
    assert len(cosines) == 4 and cosines[0] < cosines[-1]


def test_preset_has_what_is_the_teachers(run, data):
    student, model = (
        FixedHeadTextEmbedder.from_preset(str(folder))
        for folder in (run.preset, data.teacher)
    )
    assert student.preprocessor.prompts == PROMPTS
    assert student.preprocessor.sequence_length == 13
    assert student.pooling_mode == model.pooling_mode == "cls"
    tokenizer = student.preprocessor.tokenizer
    assert tokenizer.get_vocabulary() == tiny.VOCABULARY
    backbone = student.backbone
    assert (backbone.num_heads, backbone.head_size) == (3, 5)
    assert (backbone.num_layers, backbone.hidden_dim) == (1, 11)


def test_figures_by_hand(run, data, tmp_path):
    texts = DistillationTask(CASE.config(data, tmp_path))._texts
    assert sorted(texts) == sorted(tiny.texts())
    targets = encode(data.teacher, texts, "query")
    students = encode(run.preset, texts[:7], "query")
    expected = targets @ components(targets, 11)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    last = run.records[-1]
    assert last["heldout_cosine"] == pytest.approx(
        np.mean(np.sum(students * expected[:7], axis=1)), abs=1e-4
    )
    assert last["heldout_neighbours@10"] == 1.0  # there are six others


def test_other_data_or_another_teacher_is_refused(run, data, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{t}\n" for t in tiny.texts(41)))
    tiny.embedder(1, PROMPTS).save_to_preset(str(tmp_path / "other"))
    other = Inputs(texts, tmp_path / "other", data.cache)
    error = CASE.error(capsys, other, run.workdir)
    assert "teacher_sha256" in error and "data_sha256" in error
    assert "attention_weight" not in error


def test_losses_by_hand(make_task):
    task = make_task(prompt="query")
    batch = first_batch(task)
    numbers = batch["index"].numpy() + 7
    inputs = task.model_inputs(batch)
    np.testing.assert_array_equal(
        inputs["token_ids"],
        task.model.preprocessor.pad_to_longest(
            [task._texts[i] for i in numbers], prompt="query"
        )["token_ids"],
    )
    model, teacher = task.model, task._teacher
    ours = model.embed_packed(inputs).numpy()
    theirs = encode(task.config.distillation.teacher, task._texts, "query")
    targets = theirs[numbers] @ components(theirs, 11)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    similarity = []
    for i in range(6):
        others = [j for j in range(6) if j != i]
        teachers, students = (
            numpy_softmax(vectors[others] @ vectors[i] / 0.1)
            for vectors in (theirs[numbers], ours)
        )
        similarity.append(numpy_divergence(teachers, students))
    mask = inputs["padding_mask"].numpy()
    (_, projections), (_, relations) = (
        embedder.embed_packed(inputs, return_projections=True)
        for embedder in (model, teacher)
    )
    attention = [
        numpy_relation_loss(
            projections[name].numpy(), relations[name].numpy(), mask, 3
        )
        for name in ("query", "key", "value")
    ]
    expected = {
        "embedding_loss": np.mean(1 - np.sum(ours * targets, axis=1)),
        "similarity_loss": np.mean(similarity),
        "attention_loss": np.mean(attention),
    }
    expected["loss"] = (
        2.0 * expected["embedding_loss"]
        + 0.7 * expected["similarity_loss"]
        + 0.3 * expected["attention_loss"]
    )
    assert min(expected.values()) > 1e-3  # each would be missed
    assert losses_of(task, batch) == pytest.approx(expected, abs=1e-5)
    totals = {name: float(x) for name, x in task.totals(batch).items()}
    assert totals == {"examples": 6, "tokens": mask.sum()}


@pytest.mark.parametrize(
    "changes, runs",
    [({}, 3), pytest.param({"packed": False}, 0, marks=pytest.mark.slow)],
)
def test_only_packed_has_sizes_that_depend_on_the_text(
    changes, runs, make_task
):
    task = make_task(**changes)
    batch = first_batch(task)

    @tf.function
    def both():
        loss, _ = task.loss(batch, task.totals(batch))
        return loss, task.evaluation_step(batch)

    graph = both.get_concrete_function().graph
    # It finds the real tokens, as often as a model runs.
    assert [op.type for op in graph.get_operations()].count("Where") == runs


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float64"])
@pytest.mark.slow
def test_dtypes_of_student_and_teacher_may_differ(dtype, make_task):
    usual = make_task()
    batch = first_batch(usual)
    expected = losses_of(usual, batch)
    task = make_task(dtype=dtype)
    task.model.set_weights(usual.model.get_weights())
    rough = dtype == "mixed_bfloat16"
    assert losses_of(task, batch) == pytest.approx(
        expected, rel=0.1 if rough else 1e-4, abs=1e-2 if rough else 1e-5
    )
    loss, parts = get_strategy("one_device").run(
        functools.partial(task.loss, batch, task.totals(batch))
    )
    assert {x.dtype.name for x in (loss, *parts.values())} == {
        "float32" if rough else "float64"
    }


def test_attention_loss_trains_all_projections(make_task):
    task = make_task()
    batch = first_batch(task)
    attention = task.model.backbone.transformer_layers[-1].attention
    kernels = [
        getattr(attention, name).kernel.value
        for name in ("query", "key", "value")
    ]
    with tf.GradientTape() as tape:
        _, losses = task.loss(batch, task.totals(batch))
    for gradient in tape.gradient(losses["attention_loss"], kernels):
        assert gradient.shape == (11, 15)
        assert np.abs(gradient).max(axis=0).min() > 0  # each column
    assert not set(map(id, task.model.variables)) & set(
        map(id, task._teacher.variables)
    )


def test_without_attention_the_teacher_does_not_run(make_task):
    task = make_task(attention_weight=0.0)
    totals = {"tokens": 97.0, "examples": 7.0}
    assert task.flops(totals) and not make_task().flops(totals)
    assert task.metrics == ("embedding_loss", "similarity_loss")
    assert losses_of(task, first_batch(task)).keys() == {"loss", *task.metrics}


@pytest.mark.parametrize(
    "changes", [{}, {"max_sequence_length": 43, "hidden_dim": 17}]
)
def test_tables_start_as_the_teachers(changes, make_task, data):
    backbone = make_task(**changes).model.backbone
    longest, width = backbone.max_sequence_length, backbone.hidden_dim
    theirs = FixedHeadTextEmbedder.from_preset(str(data.teacher)).backbone
    tokens = theirs.token_embedding.get_weights()[0]
    basis = np.zeros((13, width))
    basis[:, : min(13, width)] = components(tokens, width)
    for name in ("token", "position", "segment"):
        ours, rows = (
            getattr(model, f"{name}_embedding").get_weights()[0]
            for model in (backbone, theirs)
        )
        rows = rows @ basis
        if name == "position":
            # The teacher has 19.
            rows = rows[np.arange(longest) % 19]
        np.testing.assert_allclose(ours, rows, atol=1e-6)


def test_tables_start_anew(make_task):
    copied, anew = (
        task.model.backbone.get_weights()
        for task in (make_task(), make_task(copy_embeddings=False))
    )
    same = [np.array_equal(a, b) for a, b in zip(copied, anew)]
    assert same.count(False) == 3


def test_neighbours_by_hand():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=(23, 5)), rng.normal(size=(23, 7))
    shared = []
    for i in range(23):
        nearest = [
            sorted(
                (j for j in range(23) if j != i),
                key=lambda j: -(vectors[i] @ vectors[j]),
            )[:3]
            for vectors in (ours, theirs)
        ]
        shared.append(len(set(nearest[0]) & set(nearest[1])) / 3)
    assert 0 < np.mean(shared) < 1
    found = shared_neighbours(ours, theirs, 3)
    assert found == pytest.approx(np.mean(shared))
    assert shared_neighbours(ours, 2 * ours, 3) == 1.0
    # All four others are near.
    assert shared_neighbours(ours[:5], theirs[:5], 10) == 1.0


@pytest.mark.slow
def test_teacher_of_fewer_numbers(data, tmp_path):
    """It keeps the first ones only, and these are what is learned."""
    embedder = tiny.embedder()
    FixedHeadTextEmbedder(
        embedder.backbone, embedder.preprocessor, embedding_dim=5
    ).save_to_preset(str(tmp_path / "teacher"))
    task = DistillationTask(
        tiny.distillation(data.texts, tmp_path / "teacher", tmp_path)
    )
    task.build()
    assert task._training.embeddings.shape == (36, 5)
    assert np.isfinite(losses_of(task, first_batch(task))["loss"])


def test_missing_files_are_named(data, tmp_path, capsys):
    missing, workdir = tmp_path / "no", tmp_path / "run"
    error = CASE.error(capsys, data._replace(teacher=missing), workdir)
    assert error == (
        "training.distill: error: `teacher` must be a preset folder, such as "
        f"WORKDIR/preset of an earlier run. Received: {str(missing)!r}"
    )
    error = CASE.error(capsys, data._replace(texts=missing), workdir)
    assert str(missing) in error
    assert not workdir.exists()
