"""Hugging Face's folders: what they compute, and back."""

import fnmatch
import importlib
import json

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_fixedhead import FixedHeadTextEmbedder, convert
from keras_fixedhead.convert.bert_source import SPECIAL_TOKEN_TEXTS
from keras_fixedhead.convert.hugging_face import _HUB_FILES, is_hub_name
from tests.keras_fixedhead.hugging_face import (
    CONFIG,
    TEXTS,
    VOCABULARY,
    change_file,
    make_tensors,
    run,
    write_model,
    write_modules,
)

NAME = "sentence-transformers/all-MiniLM-L6-v2"

pytestmark = pytest.mark.any_backend


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    lengths = np.array([[17], [1], [8]])
    return {
        "token_ids": rng.integers(0, CONFIG["vocab_size"], (3, 17)),
        "segment_ids": rng.integers(0, 2, (3, 17)),
        "padding_mask": (np.arange(17) < lengths).astype("int32"),
    }


def assert_equal_outputs(outputs, expected, padding_mask):
    assert outputs.keys() == expected.keys()
    real = padding_mask.astype(bool)
    for name, x in expected.items():
        y = keras.ops.convert_to_numpy(outputs[name])
        if x.shape[:2] == real.shape:
            x, y = x[real], y[real]
        np.testing.assert_allclose(y, x, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("activation", "pooler"), [("gelu", True), ("gelu_new", False)]
)
def test_backbone_computes_the_same(tmp_path, batch, activation, pooler):
    config = {**CONFIG, "hidden_act": activation}
    tensors = make_tensors(pooler=pooler)
    folder = write_model(tmp_path, config, tensors)

    backbone = convert.from_hugging_face(folder, task="backbone")

    assert backbone.pooler == pooler
    assert backbone.head_size == 5
    assert_equal_outputs(
        backbone(batch), run(tensors, batch, config), batch["padding_mask"]
    )


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gelu_python", "gelu"),
        ("gelu_fast", "gelu_approximate"),
        ("relu", "relu"),
        ("swish", "silu"),
    ],
)
def test_names_of_activations(tmp_path, name, activation):
    folder = write_model(tmp_path, {**CONFIG, "hidden_act": name})
    source = convert.read_hugging_face(folder)
    assert source.config["activation"] == activation


def test_masked_lm_computes_the_same(tmp_path, batch):
    tensors = make_tensors(heads=True)
    folder = write_model(tmp_path, tensors=tensors)

    masked_lm = convert.from_hugging_face(folder, task="masked_lm")

    places = np.broadcast_to(np.arange(17), (3, 17))
    expected = run(tensors, batch)
    assert_equal_outputs(
        masked_lm({**batch, "mask_positions": places}),
        {name: expected[name] for name in ("masked_lm", "next_sentence")},
        batch["padding_mask"],
    )


def test_masked_lm_without_next_sentences(tmp_path):
    tensors = {
        name: tensor
        for name, tensor in make_tensors(heads=True).items()
        if "pooler" not in name and "seq_relationship" not in name
    }
    folder = write_model(tmp_path, tensors=tensors)
    assert not convert.from_hugging_face(folder, "masked_lm").next_sentence


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (b"{", "config.json is not JSON"),
        ({"registered_name": "a>B"}, "a preset of KerasHub or of this"),
        ({"model_type": "roberta"}, "'roberta'"),
        ({"hidden_act": "gelu_10"}, "hidden_act.*'gelu_10'"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads=.*no equivalent"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"hidden_size": 16}, "be a multiple of"),
        ({"hidden_size": None}, "`hidden_size` in.*None"),
        ({"num_attention_heads": 0}, "of 1 or more"),
        ({"hidden_dropout_prob": 2}, "from 0 to 1"),
        ({"layer_norm_eps": True}, "of type float"),
        ({"auto_map": {"AutoModel": "a.B"}}, "auto_map"),
        (None, "adapter_config.json is of an adapter"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, change, message):
    folder = write_model(tmp_path)
    name = "adapter_config" if change is None else "config"
    change_file(folder / f"{name}.json", change or {})
    with pytest.raises(ValueError, match=message):
        convert.from_hugging_face(folder, "backbone")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "how it pools.*`pooling_mode`"),
        ({"pooling_mode": "cls", "sequence_length": 20}, "from 3 to 19.*=20"),
        ({"task": "embedder"}, "`task` must be one of"),
    ],
)
def test_what_must_be_passed(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        convert.from_hugging_face(write_model(tmp_path), **arguments)


@pytest.mark.parametrize(
    ("task", "heads"),
    [("text_embedder", True), ("masked_lm", True), ("backbone", False)],
)
def test_there_and_back(tmp_path, task, heads):
    source = write_model(tmp_path / "there", tensors=make_tensors(heads=heads))
    write_modules(
        source,
        {"pooling_mode": "cls"},
        normalize=False,
        sentence_bert_config={"max_seq_length": 13},
        config_sentence_transformers={"prompts": {"query": "a: "}},
    )
    model = convert.from_hugging_face(source, task)

    convert.to_hugging_face(model, tmp_path / "back")

    written = safetensors.numpy.load_file(tmp_path / "back/model.safetensors")
    tensors = make_tensors(heads=heads)
    for name, tensor in written.items():
        if name not in tensors:
            name = f"bert.{name}"
        np.testing.assert_array_equal(tensor, tensors[name], err_msg=name)
    config = json.loads((tmp_path / "back/config.json").read_text())
    for name in CONFIG.keys() - {"architectures"}:
        assert config[name] == CONFIG[name]
    if task == "backbone":
        return
    again = convert.read_hugging_face(tmp_path / "back")
    assert again.vocabulary == VOCABULARY
    assert again.lowercase
    # Their tokenizer, of the file we wrote, and ours.
    assert not again.differing_texts(
        model.preprocessor.tokenizer, [*TEXTS, *SPECIAL_TOKEN_TEXTS]
    )
    if task == "text_embedder":
        embedder = again.build()
        assert embedder.pooling_mode == "cls"
        assert not embedder.normalize
        assert embedder.preprocessor.sequence_length == 13
        assert embedder.preprocessor.prompts == {"query": "a: "}
        found, expected = (x(x.preprocessor(TEXTS)) for x in (embedder, model))
        np.testing.assert_array_equal(
            *map(keras.ops.convert_to_numpy, (found, expected))
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_size", [5, 6]),
        ("attention_window", 3),
        ("activation", "tanh"),
        ("embedding_dim", 7),
    ],
)
def test_back_only_where_the_format_has_a_place(
    tmp_path, make_backbone, name, value
):
    sizes = {"num_heads": 1, "head_size": 11}
    if name == "embedding_dim":
        model = FixedHeadTextEmbedder(make_backbone(**sizes), **{name: value})
    else:
        model = make_backbone(**{**sizes, name: value})
    with pytest.raises(ValueError, match=f"no place for this `{name}`"):
        convert.to_hugging_face(model, tmp_path / "back")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileExistsError, match="exists"):
        convert.to_hugging_face(model, tmp_path)


def test_back_is_there_whole_or_not_at_all(
    tmp_path, make_embedder, monkeypatch
):
    def fail(*args, **kwargs):
        raise safetensors.SafetensorError("No space")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    embedder = make_embedder(num_heads=1, head_size=11)
    with pytest.raises(OSError, match="model.safetensors.*No space"):
        convert.to_hugging_face(embedder, tmp_path / "back")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Hugging Face's cache, empty, of a machine without a network."""
    folder = tmp_path / "cache"
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("name", [NAME, f"hf://{NAME}"])
def test_a_failed_download_says_how_to_get_the_folder(name, cache):
    message = f"cannot be downloaded .*snapshot_download.'{NAME}'. and pass"
    with pytest.raises(FileNotFoundError, match=message) as error:
        convert.from_hugging_face(name)
    assert "\n" not in str(error.value)


def test_what_was_downloaded_is_read(cache):
    repository = cache / f"models--{NAME.replace('/', '--')}"
    commit = 40 * "a"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.parent.mkdir()
    write_model(snapshot)
    source = convert.read_hugging_face(NAME)
    assert source.origin == str(snapshot)


def test_neither_pickles_nor_code_are_downloaded():
    wanted = ["model.safetensors", "1_Pooling/config.json", "vocab.txt"]
    others = ["pytorch_model.bin", "onnx/model.onnx", "modeling.py"]
    assert wanted == [
        name
        for name in [*wanted, *others]
        if any(fnmatch.fnmatch(name, x) for x in _HUB_FILES)
    ]


def test_a_mistyped_path_is_not_downloaded(tmp_path, cache):
    (tmp_path / "runs").mkdir()
    assert is_hub_name("runz/minilm")
    for path in ("runs/minilm", "minilm", "/runz", "a/b/c"):
        assert not is_hub_name(path)
        with pytest.raises(FileNotFoundError, match="`folder` must be.*a repo"):
            convert.from_hugging_face(path)
    assert is_hub_name("hf://runs/minilm")
    with pytest.raises(FileNotFoundError, match="runs has no config.json"):
        convert.from_hugging_face("runs")
