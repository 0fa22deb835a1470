"""What is published, when, and that it answers as the Keras model does."""

import itertools
import json

import keras
import numpy as np
import pytest

from export import cli, publish, saved_model, services, session, verify
from export.files import card, golden, warmup
from tests.export import tiny
from tests.export.services import kinds

TEXTS = [
    "open the file, read it line by line",
    "é 西 σ ΣΊΣΥΦΟΣ",
    "",
    "fox " * 50,
    "fox [SEP] fox[MASK]dog [sep]",
    "\uf0b7fox dog\u2e5ddog \ua7c0 lazy\u08ca\u0334",
]


@pytest.fixture(scope="module")
def model(base_path):
    loaded = session.SavedModelSession(base_path / "3")
    yield loaded
    loaded.close()


def test_equals_padded_keras_model(model, embedder):
    texts = np.array([text.encode() for text in TEXTS], object)
    prefixes = {"serving_default": "", "query": "query: ", "document": ""}
    for signature, prefix in prefixes.items():
        inputs = embedder.preprocessor([prefix + text for text in TEXTS])
        answer = model.run({"text": texts}, signature)["embedding"]
        np.testing.assert_allclose(answer, embedder(inputs), atol=1e-5)
        assert answer.dtype == np.float32
    inputs = {
        name: keras.ops.convert_to_numpy(ids).astype(np.int32)
        for name, ids in inputs.items()
    }
    answer = model.run(inputs, "from_token_ids")["embedding"]
    np.testing.assert_allclose(answer, embedder(inputs), atol=1e-5)


def test_stored_files(base_path, embedder):
    folder = base_path / "3"
    described = card.load(folder)
    assert described["parameters"] == embedder.count_params()
    parameter_bytes = described["parameter_bytes"]
    assert parameter_bytes == 4 * embedder.count_params()
    # Each weight is stored once.
    [data] = folder.glob("variables/variables.data-*")
    assert parameter_bytes < data.stat().st_size < parameter_bytes + 4096
    assert described["embedding_dim"] == 13
    assert described["run"] is None
    warmed = {
        (request.model_spec.signature_name, tensor.tensor_shape.dim[0].size)
        for request in warmup.read(folder)
        for tensor in request.inputs.values()
    }
    names = ("serving_default", "query", "document", "from_token_ids")
    sizes = (1, 2, 4, 8, 16, 32)
    assert warmed == set(itertools.product(names, sizes))
    cases = golden.load(folder)
    assert cases["query"].inputs["text"].tolist() == [
        text.encode() for text in golden.TEXTS
    ]
    # No folder of the export is left behind.
    assert [path.name for path in base_path.iterdir()] == ["3"]


@pytest.fixture(scope="module")
def preset_without_prompts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    tiny.new_embedder(pooling_mode="cls").save_to_preset(str(folder))
    run = {"settings": {"seed": 7}, "figures": {"step": 3}}
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def test_options(preset_without_prompts, tmp_path):
    """One export of all: cut, in half precision, warmed by real texts."""
    (tmp_path / "7").mkdir()
    texts = tmp_path / "texts"
    texts.write_text("open the file\n\nread it\n", encoding="utf-8")
    exported = kinds.export(
        preset_without_prompts,
        tmp_path,
        dtype="bfloat16",
        embedding_dim=5,
        warmup_texts=texts,
    )
    assert exported.folder == tmp_path / "8"
    assert exported.golden.keys() == {"serving_default", "from_token_ids"}
    embedding = exported.golden["serving_default"].outputs["embedding"]
    assert embedding.shape[1] == 5
    lengths = np.linalg.norm(embedding, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    described = exported.card
    assert described["dtype"] == "bfloat16"
    assert described["parameter_bytes"] == 2 * described["parameters"]
    assert 0.999 < described["least_cosine_to_float32"] < 1
    assert described["run"]["settings"] == {"seed": 7}
    sent = {
        text
        for request in warmup.read(exported.folder)
        for text in request.inputs["text"].string_val
    }
    assert sent == {b"open the file", b"read it"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "bfloat16", "int8"])
def test_raw_encoder_of_a_keras_file(tmp_path, dtype):
    """The tokens of an embedder's encoder, with a pooler, from one file."""
    embedder = tiny.new_embedder(prompts={"query": "query: "}, pooler=True)
    embedder.save(tmp_path / "embedder.keras")
    exported = kinds.export(
        tmp_path / "embedder.keras", tmp_path, dtype=dtype, raw_encoder=True
    )
    texts = np.array([b"sum", b"open the", b""], object)
    answer = exported.session.run({"text": texts})
    inputs = embedder.preprocessor(["sum", "open the", ""])
    ids, mask = answer["token_ids"], answer["padding_mask"]
    np.testing.assert_array_equal(ids, np.array(inputs["token_ids"])[:, :4])
    np.testing.assert_array_equal(mask.sum(axis=1), [3, 4, 2])
    expected = dict(embedder.backbone(inputs))
    expected["sequence_output"] = (
        np.array(expected["sequence_output"])[:, :4] * mask[:, :, None]
    )
    for name, array in expected.items():
        np.testing.assert_allclose(
            answer[name], array, atol=1e-5 if dtype is None else 0.1
        )
    kernels = exported.card["parameter_bytes"] / exported.card["parameters"]
    assert kernels == 4 if dtype is None else kernels < 3


def test_red_gate_publishes_nothing(
    preset_without_prompts, tmp_path, monkeypatch
):
    red = [verify.Result("golden answers", False, "they differ")]

    def write(folder, *_):
        (folder / "saved_model.pb").touch()

    monkeypatch.setattr(publish, "write", write)
    monkeypatch.setattr(services, "golden_cases", lambda *_: {})
    monkeypatch.setattr(services, "warmup_requests", lambda *_: [])
    monkeypatch.setattr(verify, "run_checks", lambda *_: red)
    exported = publish.export(preset_without_prompts, tmp_path)
    assert exported == (red, None)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--version", "-1"], "`version` -1 must be a number that"),
        (["--version", "3"], "`version` 3 must be a number that"),
        (["--version", "1"], "`model` must be a preset folder"),
        (["--warmup_texts", "nothing.txt"], "nothing.txt"),
    ],
)
def test_command_line_errors(base_path, tmp_path, capsys, words, message):
    words = ["--model", str(tmp_path), "--output", str(base_path), *words]
    assert cli.run(saved_model.main, saved_model.Arguments, words) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in base_path.iterdir()] == ["3"]
