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


def expected(teacher, texts, prompt, length):
    """What its own method gives, of texts cut to a length."""
    preprocessor = teacher.preprocessor
    whole = preprocessor.sequence_length
    preprocessor.sequence_length = length
    vectors = teacher.encode_text(texts, prompt=prompt, verbose=0)
    preprocessor.sequence_length = whole
    return vectors


@pytest.mark.parametrize("prompt, length", [(None, 17), ("query", 7)])
def test_embeddings_are_the_teachers(teacher, prompt, length, tmp_path):
    embeddings = teacher_embeddings(
        teacher, TEXTS, tmp_path, "a", prompt=prompt, sequence_length=length
    )
    assert embeddings.dtype == "float32"
    np.testing.assert_allclose(
        embeddings, expected(teacher, TEXTS, prompt, length), atol=1e-5
    )
    if prompt:
        # Each of them counts.
        for other in ((None, 7), ("query", 17)):
            assert (
                np.abs(embeddings - expected(teacher, TEXTS, *other)).max()
                > 1e-3
            )


def test_embeddings_have_unit_length_whatever_the_teachers_have(tmp_path):
    teacher = tiny.embedder()
    teacher.normalize, teacher.embedding_dim = False, 5
    embeddings = teacher_embeddings(teacher, TEXTS, tmp_path, "a")
    assert embeddings.shape == (17, 5)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-6)


def test_second_time_reads_them(teacher, written, computed):
    folder, first = written
    again = teacher_embeddings(teacher, TEXTS, folder, **IDENTITY)
    assert not computed
    np.testing.assert_array_equal(first, again)
    (files,) = folder.iterdir()
    assert sorted(path.name for path in files.iterdir()) == [
        f"{number:05}.npy" for number in range(4)
    ]
    # Nothing but the files is read.
    np.save(files / "00003.npy", np.ones_like(first[15:]))
    read = teacher_embeddings(teacher, TEXTS, folder, **IDENTITY)
    np.testing.assert_array_equal(read[:15], first[:15])
    assert (read[15:] == 1).all()
    np.save(files / "00003.npy", first[15:])


@pytest.mark.parametrize(
    "texts, identity",
    [
        (TEXTS, IDENTITY | {"sha256": "b"}),
        (TEXTS, IDENTITY | {"prompt": "query"}),
        (TEXTS, IDENTITY | {"sequence_length": 13}),
        (TEXTS[::-1], IDENTITY),
        (TEXTS[:-1], IDENTITY),
    ],
    ids=["teacher", "prompt", "length", "order", "texts"],
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


def test_failed_write_leaves_nothing(teacher, tmp_path, monkeypatch):
    def save(file, array):
        file.write(b"begun")
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", save)
    with pytest.raises(OSError, match="disk full"):
        teacher_embeddings(teacher, TEXTS, tmp_path, **IDENTITY)
    (folder,) = tmp_path.iterdir()
    assert not list(folder.iterdir())


def test_workers_begin_far_from_each_other(
    teacher, written, computed, tmp_path, monkeypatch
):
    write = module._write

    def write_and_stop(path, array):
        write(path, array)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", write_and_stop)
        for number, file in enumerate(("00000.npy", "00002.npy")):
            with pytest.raises(KeyboardInterrupt):
                teacher_embeddings(
                    teacher, TEXTS, tmp_path, **IDENTITY, worker=(number, 2)
                )
            (folder,) = tmp_path.iterdir()
            assert len(list(folder.iterdir())) == number + 1
            assert (folder / file).exists()
    # The rest is done by whoever is left.
    both = teacher_embeddings(
        teacher, TEXTS, tmp_path, **IDENTITY, worker=(1, 2)
    )
    assert sum(computed) == 17  # no text twice
    np.testing.assert_array_equal(both, written[1])


def test_processes_of_one_number_do_not_write_one_file(tmp_path, monkeypatch):
    """In containers that share a folder, they are all the first."""
    path = tmp_path / "rows.npy"
    save = np.save

    def save_while_another_does(file, array):
        monkeypatch.setattr(np, "save", save)
        module._write(path, np.zeros(3))
        save(file, array)

    monkeypatch.setattr(np, "save", save_while_another_does)
    module._write(path, np.ones(5))
    np.testing.assert_array_equal(np.load(path), np.ones(5))
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_named(teacher, tmp_path):
    teacher_embeddings(teacher, TEXTS, tmp_path, **IDENTITY)
    path = sorted(tmp_path.glob("*/*.npy"))[1]
    whole = path.read_bytes()
    for size in (0, 60, len(whole) - 4):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"{path.name} is damaged.*Remove"):
            teacher_embeddings(teacher, TEXTS, tmp_path, **IDENTITY)


def test_a_teacher_of_nothing_is_refused(tmp_path):
    silent = tiny.embedder(prompts=None)
    norm = silent.backbone.transformer_layers[-1].output_layer_norm
    norm.gamma.assign(0 * norm.gamma)
    norm.beta.assign(0 * norm.beta)
    with pytest.raises(ValueError, match="zero or not finite"):
        teacher_embeddings(silent, TEXTS, tmp_path, **IDENTITY)
    assert not list(tmp_path.rglob("*.npy"))
