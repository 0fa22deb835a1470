"""The files of sentence-transformers: pooling, lengths and prompts."""

import keras
import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextEmbedder, convert
from tests.keras_fixedhead.hugging_face import (
    change_file,
    make_tensors,
    run,
    write_json,
    write_model,
    write_modules,
)

pytestmark = pytest.mark.any_backend

USUAL = ("Transformer", "Pooling", "Normalize")
LENGTHS, PROMPTS = "sentence_bert_config", "config_sentence_transformers"
POOLING = "1_Pooling/config"


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path)
    write_modules(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("cls", {"pooling_mode": "cls", "include_prompt": True}),
        ("cls", {"pooling_mode_cls_token": True}),
        ("mean", {"pooling_mode": ["mean"]}),
        ("mean", {"pooling_mode_mean_tokens": True}),
        (
            "max",
            {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True},
        ),
    ],
)
def test_embeddings_are_the_pooled_tokens(folder, mode, pooling):
    write_modules(folder, pooling, normalize=mode != "max")
    embedder = convert.from_hugging_face(folder)
    batch = embedder.preprocessor(["Attention heads, a CAFÉ!", "head", "a b."])
    batch = {k: keras.ops.convert_to_numpy(x) for k, x in batch.items()}
    rows = []
    for tokens, mask in zip(
        run(make_tensors(), batch)["sequence_output"], batch["padding_mask"]
    ):
        tokens = tokens[mask.astype(bool)]
        row = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.max(0)}
        norm = 1 if mode == "max" else np.linalg.norm(row[mode])
        rows.append(row[mode] / norm)
    found = keras.ops.convert_to_numpy(embedder(batch))
    np.testing.assert_allclose(found, rows, atol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_matrix_after_pooling_there_and_back(folder, tmp_path, normalize):
    plain = convert.from_hugging_face(folder, normalize=False)
    embedder = FixedHeadTextEmbedder(
        plain.backbone,
        plain.preprocessor,
        pooling_mode="mean",
        normalize=normalize,
        projection_dim=17,
    )
    convert.to_hugging_face(embedder, tmp_path / "back")
    again = convert.from_hugging_face(tmp_path / "back")
    matrix = keras.ops.convert_to_numpy(embedder.projection.kernel)
    texts = ["Attention heads, a CAFÉ!", "head"]
    found, pooled = (
        keras.ops.convert_to_numpy(model(model.preprocessor(texts)))
        for model in (again, plain)
    )
    expected = pooled @ matrix
    if normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # An encoder alone, or with another head, has no use for it.
    convert.from_hugging_face(tmp_path / "back", "backbone")
    dense = tmp_path / "back" / "2_Dense" / "config.json"
    for changes, message in (
        ({"use_residual": True}, "use_residual=True"),
        ({"bias": True}, "bias=True"),
        ({"activation_function": "torch.nn.modules.Tanh"}, "Tanh"),
    ):
        change_file(dense, changes)
        with pytest.raises(ValueError, match=message):
            convert.from_hugging_face(tmp_path / "back")


def test_lengths_and_prompts(folder):
    change_file(folder / f"{LENGTHS}.json", {"max_seq_length": 13})
    change_file(
        folder / f"{PROMPTS}.json",
        {
            "prompts": {"query": "a: ", "document": ""},
            "default_prompt_name": "query",
        },
    )
    source = convert.read_hugging_face(folder)
    assert source.default_prompt == "query"
    preprocessor = source.build().preprocessor
    assert preprocessor.sequence_length == 13
    assert preprocessor.prompts == {"query": "a: "}
    # The limit is that of the positions.
    change_file(folder / f"{LENGTHS}.json", {"max_seq_length": 512})
    assert convert.read_hugging_face(folder).sequence_length == 19


@pytest.mark.parametrize("name", ["model_max_length", "max_len"])
def test_the_length_of_a_folder_without_modules(tmp_path, name):
    write_model(tmp_path)
    assert convert.read_hugging_face(tmp_path).sequence_length is None
    # Without a limit it is an integer of a float, `int(1e30)`, or the float.
    for length, expected in ((11, 11), (int(1e30), 19), (1e30, 19)):
        change_file(tmp_path / "tokenizer_config.json", {name: length})
        source = convert.read_hugging_face(tmp_path)
        assert source.sequence_length == expected


def test_the_encoder_in_a_folder_of_its_own(folder):
    # As version 1 of sentence-transformers writes it.
    encoder = folder / "0_Transformer"
    encoder.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name != "modules.json":
            path.rename(encoder / path.name)
    modules = (folder / "modules.json").read_text()
    modules = modules.replace('"path": ""', '"path": "0_Transformer"')
    (folder / "modules.json").write_text(modules)
    write_json(folder / "config.json", {"__version__": "1.0.0"})
    write_json(encoder / "sentence_bert_config.json", {"max_seq_length": 7})
    embedder = convert.from_hugging_face(folder)
    assert embedder.pooling_mode == "mean"
    assert embedder.preprocessor.sequence_length == 7


def test_what_is_passed_counts_more_than_what_is_said(folder):
    embedder = convert.from_hugging_face(
        folder,
        pooling_mode="max",
        normalize=False,
        lowercase=False,
        sequence_length=7,
        prompts={"query": "b "},
    )
    assert embedder.pooling_mode == "max"
    assert not embedder.normalize
    assert not embedder.preprocessor.tokenizer.lowercase
    assert embedder.preprocessor.sequence_length == 7
    assert embedder.preprocessor.prompts == {"query": "b "}


def modules(*kinds):
    return [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules", [], "has the modules . There must be"),
        ("modules", [{"type": "own.models.A"}], "Received: .*own.models.A"),
        (
            "modules",
            [{"type": "sentence_transformers.models.Pooling", "path": "../b"}],
            "in this folder",
        ),
        ("modules", modules(*USUAL, "Dense"), "Pooling, Normalize, Dense"),
        ("modules", modules(*USUAL[:2], "Dense", "Dense"), "Dense, Dense"),
        (LENGTHS, {"max_seq_length": -3}, "over 2.*Received: -3"),
        (LENGTHS, {"query_length": 7}, "query_length=7"),
        (PROMPTS, {"truncate_dim": 7}, "truncate_dim=7"),
        (POOLING, {"pooling_mode": "lasttoken"}, "lasttoken"),
        (POOLING, {"pooling_mode_mean_sqrt_len_tokens": True}, "one way"),
        (POOLING, {"include_prompt": False}, "include_prompt"),
    ],
)
def test_errors_name_what_is_wrong(folder, name, content, message):
    path = folder / f"{name}.json"
    if name == "modules":
        write_json(path, content)
    else:
        change_file(path, content)
    with pytest.raises(ValueError, match=message):
        convert.read_hugging_face(folder)


def test_lower_casing_before_a_tokenizer_that_keeps_accents(folder):
    change_file(folder / "tokenizer_config.json", {"do_lower_case": False})
    change_file(folder / f"{LENGTHS}.json", {"do_lower_case": True})
    with pytest.raises(ValueError, match="lower-cases before"):
        convert.read_hugging_face(folder)
