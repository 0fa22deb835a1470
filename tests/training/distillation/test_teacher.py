"""A teacher's embeddings: as it gives them, computed once, then read."""

import functools

import numpy as np
import pytest

from keras_fixedhead.batched_embedding import TextEncoder
from tests.training import tiny
from training.distillation import teacher as module
from training.distillation.teacher import teacher_embeddings

TEXTS = tiny.texts(17)
IDENTITY = {"sha256": "a", "sequence_length": 11}


@pytest.fixture(scope="module")
def teacher():
    return tiny.embedder(prompts={"query": "one two "})


@pytest.fixture(scope="module", autouse=True)
def small_files():
    """17 texts take 4 files, of 2 batches each but the last."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_TEXTS_PER_FILE", 5)
        patched.setattr(module, "_BATCH_SIZE", 3)
        # One graph for each length, not for each call.
        patched.setattr(module, "TextEncoder", functools.cache(TextEncoder))
        yield


@pytest.fixture(scope="module")
def written(teacher, small_files, tmp_path_factory):
    """The folder of all embeddings, and these."""
    folder = tmp_path_factory.mktemp("written")
    return folder, teacher_embeddings(teacher, TEXTS, folder, **IDENTITY)


@pytest.fixture
def computed(teacher, monkeypatch):
    """The rows of each batch that the teacher computes."""
    batches = []
    embed = TextEncoder._embed

    def counted(self, texts):
        batches.append(len(texts))
        return embed(self, texts)

    monkeypatch.setattr(TextEncoder, "_embed", counted)
    return batches


def test_embeddings_are_the_teachers_of_unit_length(tmp_path):
    teacher = tiny.embedder(prompts={"query": "one two "})
    teacher.normalize, teacher.embedding_dim = False, 5
    embeddings = teacher_embeddings(
        teacher, TEXTS, tmp_path, "a", prompt="query", sequence_length=7
    )
    assert embeddings.dtype == "float32" and embeddings.shape == (17, 5)
    teacher.preprocessor.sequence_length = 7
    whole = teacher.encode_text(TEXTS, prompt="query", verbose=0)
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, whole, atol=1e-5)


def test_second_time_reads_them(teacher, written, computed):
    folder, first = written
    again = teacher_embeddings(teacher, TEXTS, folder, **IDENTITY)
    assert not computed
    np.testing.assert_array_equal(first, again)
    (files,) = folder.iterdir()
    assert sorted(path.name for path in files.iterdir()) == [
        f"{number:05}.npy" for number in range(4)
    ]


@pytest.mark.parametrize(
    "texts, identity",
    [
        (TEXTS, IDENTITY | {"sha256": "b"}),
        (TEXTS, IDENTITY | {"prompt": "query"}),
        (TEXTS[::-1], IDENTITY),
    ],
    ids=["teacher", "prompt", "texts"],
)
def test_others_are_computed(texts, identity, teacher, written, computed):
    teacher_embeddings(teacher, texts, written[0], **identity)
    assert sum(computed) == len(texts)


def test_interrupted_work_is_continued(
    teacher, written, computed, tmp_path, monkeypatch
):
    embed = TextEncoder._embed

    def interrupted(self, texts):
        if len(computed) == 2:
            raise KeyboardInterrupt
        return embed(self, texts)

    with monkeypatch.context() as patched:
        patched.setattr(TextEncoder, "_embed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            teacher_embeddings(teacher, TEXTS, tmp_path, **IDENTITY)
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["00000.npy"]
    del computed[:]
    continued = teacher_embeddings(teacher, TEXTS, tmp_path, **IDENTITY)
    # Threads take batches in any order.
    assert sorted(computed) == [2, 2, 2, 3, 3]
    np.testing.assert_array_equal(continued, written[1])


def test_workers_begin_far_from_each_other(teacher, tmp_path, monkeypatch):
    begun = []

    def stop(self, texts, *args, **kwargs):
        begun.append(texts)
        raise KeyboardInterrupt

    monkeypatch.setattr(TextEncoder, "__call__", stop)
    for number in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            teacher_embeddings(
                teacher, TEXTS, tmp_path, **IDENTITY, worker=(number, 2)
            )
    assert begun == [TEXTS[:5], TEXTS[10:15]]


def test_a_teacher_of_nothing_is_refused(tmp_path):
    silent = tiny.embedder(prompts=None)
    norm = silent.backbone.transformer_layers[-1].output_layer_norm
    norm.gamma.assign(0 * norm.gamma)
    norm.beta.assign(0 * norm.beta)
    with pytest.raises(ValueError, match="zero or not finite"):
        teacher_embeddings(silent, TEXTS, tmp_path, **IDENTITY)
    assert not list(tmp_path.rglob("*.npy"))
