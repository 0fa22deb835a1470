"""Distillation: the verb, the losses by hand, and its errors."""

import pathlib
import typing

import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.losses import similarity_loss
from tests.training import tiny
from tests.training.task_tests import Case, TaskTests, first_batch
from training import distill
from training.distillation.configs import NAMED_RUNS
from training.distillation.random_texts import random_texts
from training.engine.strategy import get_strategy

PROMPTS = {"query": "one two ", "document": ""}

LOSSES = {
    "embedding_weight": 2.0,
    "similarity_weight": 0.7,
    "similarity_temperature": 0.1,
}


class Inputs(typing.NamedTuple):
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
def task(data, tmp_path_factory):
    """A built task."""
    changes = {"dropout": 0.0, "prompt": "query", **LOSSES}
    with get_strategy("one_device").scope():
        return CASE.task(data, tmp_path_factory.mktemp("task"), **changes)


class TestVerb(TaskTests):
    case = CASE
    other = {"similarity_weight": 0.5}
    ways = ({"packed": False}, {"packed": False, "jit_compile": True})
    tolerance = 1e-3  # the teacher computes in float32
    refused = [
        ({"accumulation_steps": 2}, "`accumulation_steps` .* Received: 2"),
        ({"sequence_length": 2}, "`sequence_length` .* Received: 2"),
        (
            {"sequence_length": 19, "max_sequence_length": 23},
            "`sequence_length` .* teacher, 17. Received: 19",
        ),
        (
            {"embedding_weight": 0.0, "similarity_weight": 0.0},
            r"`similarity_weight` .* not both 0. .*: \(0.0, 0.0\)",
        ),
        ({"state_weight": 1.0}, "`state_weight` needs `init`.* init=None"),
        ({"random_texts": -1}, "`random_texts` .* Received: -1"),
        ({"prompt": "title"}, "`prompt` .*document, query.*'title'"),
        ({"validation_texts": 43}, "the 43 different texts .* Received: 43"),
    ]


def components(vectors, size):
    """The first right singular vectors, the largest number positive."""
    _, _, rows = np.linalg.svd(vectors.astype("float64"))
    signs = [np.sign(row[np.abs(row).argmax()]) for row in rows]
    return (rows * np.array(signs)[:, None])[:size].T


def encode(preset, texts, prompt=None, length=13):
    embedder = FixedHeadTextEmbedder.from_preset(str(preset))
    embedder.preprocessor.sequence_length = length
    return embedder.encode_text(texts, prompt=prompt, verbose=0)


@pytest.fixture(scope="module")
def theirs(data, task):
    """The teacher's embeddings of all texts, the held-out ones first."""
    return encode(data.teacher, task._texts, "query")


def test_seeds_share_the_teachers_embeddings(task, theirs, data, tmp_path):
    files = sorted(data.cache.rglob("*.npy"))
    with get_strategy("one_device").scope():
        other = CASE.task(data, tmp_path, prompt="query", seed=5)
    assert sorted(data.cache.rglob("*.npy")) == files
    assert other._texts != task._texts
    rows = [task._texts.index(text) for text in other._texts[7:]]
    np.testing.assert_allclose(
        other._training.embeddings, theirs[rows], atol=1e-5
    )


def test_random_texts_are_trained_on_only(task, data, tmp_path):
    with get_strategy("one_device").scope():
        ours = CASE.task(data, tmp_path, prompt="query", random_texts=29)
    assert ours._texts[:7] == ours._validation.texts == task._texts[:7]
    assert len(ours._training) == len(task._training) + 29
    added = [text for text in ours._texts if text not in task._texts]
    assert len(added) == 29 and added != ours._texts[-29:]
    rows = [ours._training.texts.index(text) for text in added]
    np.testing.assert_allclose(
        ours._training.embeddings[rows],
        encode(data.teacher, added, "query"),
        atol=1e-5,
    )
    np.testing.assert_allclose(ours._components, task._components, atol=1e-5)


def test_words_and_their_pieces():
    vocabulary = ["[PAD]", "red", "@@ab", "@@,", ",", "blue"]
    texts = random_texts(vocabulary, 500, "@@")
    assert texts == random_texts(vocabulary, 500, "@@")
    words = [word for text in texts for word in text.split()]
    assert set(words) == {
        w + p for w in ("red", "blue") for p in ("", "ab", "abab")
    }
    assert {len(text.split()) for text in texts} == set(range(2, 11))
    with pytest.raises(ValueError, match="no word .*'##a'"):
        random_texts(["##a", "."], 1)


def test_run_learns(run):
    trained = [record for record in run.records if "loss" in record]
    assert len(trained) == 9
    for name in ("loss", "embedding_loss", "similarity_loss"):
        losses = [record[name] for record in trained]
        assert np.mean(losses[-3:]) < np.mean(losses[:3]), name
    for record in trained:
        total = sum(
            LOSSES[f"{name}_weight"] * record[f"{name}_loss"]
            for name in ("embedding", "similarity")
        )
        assert record["loss"] == pytest.approx(total, rel=1e-4)
    name = "heldout_cosine"
    cosines = [record[name] for record in run.records if name in record]
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


def test_figures_by_hand(run, task, theirs):
    texts = task._texts
    assert sorted(texts) == sorted(tiny.texts())
    students = encode(run.preset, texts[:7], "query")
    expected = theirs @ components(theirs, 11)
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
    assert "embedding_weight" not in error


def test_losses_by_hand(task, theirs):
    batch = first_batch(task)
    numbers = batch["index"].numpy() + 7
    inputs = task.model_inputs(batch)
    np.testing.assert_array_equal(
        inputs["token_ids"],
        task.model.preprocessor.pad_to_longest(
            [task._texts[i] for i in numbers], prompt="query"
        )["token_ids"],
    )
    ours = task.model.embed_packed(inputs).numpy()
    targets = theirs[numbers] @ components(theirs, 11)
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    vectors = (ours, ours, theirs[numbers], theirs[numbers])
    similarity = similarity_loss(*vectors, np.arange(6, dtype="int32"), 0.1)
    expected = {
        "embedding_loss": np.mean(1 - np.sum(ours * targets, axis=1)),
        "similarity_loss": np.mean(similarity),
    }
    expected["loss"] = (
        2.0 * expected["embedding_loss"] + 0.7 * expected["similarity_loss"]
    )
    assert min(expected.values()) > 1e-3  # each would be missed
    totals = task.totals(batch)
    assert {name: float(x) for name, x in totals.items()} == {
        "examples": 6,
        "tokens": inputs["padding_mask"].numpy().sum(),
    }
    loss, parts = get_strategy("one_device").run(
        tf.function(lambda: task.loss(batch, totals))
    )
    found = {"loss": loss, **parts}
    assert {name: float(x) for name, x in found.items()} == pytest.approx(
        expected, abs=1e-5
    )


def test_tables_start_as_the_teachers(task, data):
    backbone = task.model.backbone
    theirs = FixedHeadTextEmbedder.from_preset(str(data.teacher)).backbone
    basis = components(theirs.token_embedding.get_weights()[0], 11)
    for name in ("token", "position", "segment"):
        ours, rows = (
            getattr(model, f"{name}_embedding").get_weights()[0]
            for model in (backbone, theirs)
        )
        np.testing.assert_allclose(ours, rows[: len(ours)] @ basis, atol=1e-6)


@pytest.mark.slow
def test_another_dtype_and_a_teacher_of_fewer_numbers(data, tmp_path):
    """The teacher keeps its first numbers, and these are what is learned."""
    embedder = tiny.embedder()
    FixedHeadTextEmbedder(
        embedder.backbone, embedder.preprocessor, embedding_dim=5
    ).save_to_preset(str(tmp_path / "teacher"))
    other = data._replace(teacher=tmp_path / "teacher")
    with get_strategy("one_device").scope():
        task = CASE.task(other, tmp_path, dtype="mixed_bfloat16")
    assert task._training.embeddings.shape == (36, 5)
    batch = first_batch(task)
    loss, _ = get_strategy("one_device").run(
        lambda: task.loss(batch, task.totals(batch))
    )
    assert loss.dtype == "float32" and np.isfinite(loss)


def test_missing_files_are_named(data, tmp_path, capsys):
    missing, workdir = tmp_path / "no", tmp_path / "run"
    error = CASE.error(capsys, data._replace(teacher=missing), workdir)
    assert "`teacher` must be a preset folder" in error
    assert str(missing) in error
    error = CASE.error(capsys, data._replace(texts=missing), workdir)
    assert str(missing) in error
    assert not workdir.exists()
