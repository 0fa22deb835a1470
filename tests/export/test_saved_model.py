"""What is published, when, and that it answers as the Keras model does."""

import json

import keras
import numpy as np
import pytest

from export import cli, golden, saved_model, session, warmup
from tests.export import tiny

TEXTS = [
    "open the file, read it line by line",
    "é 西 σ ΣΊΣΥΦΟΣ",
    "",
    "fox " * 50,
]


@pytest.fixture(scope="module")
def model(base_path):
    loaded = session.SavedModelSession(base_path / "3")
    yield loaded
    loaded.close()


@pytest.mark.parametrize(
    ("signature", "prefix"),
    [("serving_default", ""), ("query", "query: "), ("document", "")],
)
def test_equals_padded_keras_model(model, embedder, signature, prefix):
    texts = np.array([text.encode() for text in TEXTS], object)
    answer = model.run({"text": texts}, signature)["embedding"]
    inputs = embedder.preprocessor([prefix + text for text in TEXTS])
    np.testing.assert_allclose(answer, embedder(inputs), atol=1e-5)
    assert answer.dtype == np.float32


def test_token_ids_equal_keras_model(model, embedder):
    inputs = {
        name: keras.ops.convert_to_numpy(ids).astype(np.int32)
        for name, ids in embedder.preprocessor(TEXTS).items()
    }
    answer = model.run(inputs, "from_token_ids")["embedding"]
    np.testing.assert_allclose(answer, embedder(inputs), atol=1e-5)


def test_unlike_shapes_of_ids_are_refused(model):
    ids = np.ones([2, 3], np.int32)
    inputs = {"token_ids": ids, "padding_mask": ids[:, :2], "segment_ids": ids}
    with pytest.raises(session.StatusError, match="the same shape"):
        model.run(inputs, "from_token_ids")


def test_stored_files(base_path, embedder):
    folder = base_path / "3"
    card = json.loads((folder / "assets.extra/card.json").read_text())
    assert card["parameters"] == embedder.count_params()
    assert card["parameter_bytes"] == 4 * embedder.count_params()
    assert card["embedding_dim"] == 13
    assert len(warmup.read(folder)) == 4 * len(warmup.BATCH_SIZES)
    cases = golden.load(folder)
    assert cases["query"][0]["text"].tolist() == [
        text.encode() for text in golden.TEXTS
    ]
    # Only the version: no folder of the export is left behind.
    assert [path.name for path in base_path.iterdir()] == ["3"]


@pytest.fixture(scope="module")
def preset_without_prompts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    tiny.new_embedder().save_to_preset(str(folder))
    return folder


def test_model_without_prompts(preset_without_prompts, tmp_path):
    (tmp_path / "7").mkdir()
    _, published = saved_model.export(preset_without_prompts, tmp_path)
    assert published == tmp_path / "8"
    names = {"serving_default", "from_token_ids"}
    assert golden.load(published).keys() == names


def test_red_gate_publishes_nothing(
    preset_without_prompts, tmp_path, monkeypatch
):
    right = saved_model.golden_cases

    def wrong(embedder):
        cases = right(embedder)
        cases["serving_default"][1]["embedding"][0] += 1e-3
        return cases

    monkeypatch.setattr(saved_model, "golden_cases", wrong)
    results, published = saved_model.export(preset_without_prompts, tmp_path)
    assert [r.name for r in results if not r.passed] == ["golden answers"]
    assert published is None
    assert not list(tmp_path.iterdir())


def test_version_is_never_overwritten(preset, base_path):
    before = (base_path / "3/saved_model.pb").stat().st_mtime_ns
    with pytest.raises(ValueError, match="`version` 3 exists"):
        saved_model.export(preset, base_path, 3)
    assert (base_path / "3/saved_model.pb").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--version", "-1"], "`version` must not be negative"),
        (["--version", "1"], "`model` must be a preset folder"),
    ],
)
def test_command_line_errors(tmp_path, capsys, arguments, message):
    words = ["--model", str(tmp_path), "--output", str(tmp_path / "models")]
    status = cli.run(
        saved_model.main, saved_model.Arguments, [*words, *arguments]
    )
    assert status == 1
    assert message in capsys.readouterr().err
