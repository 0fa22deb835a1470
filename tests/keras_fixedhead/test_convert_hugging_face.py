"""Hugging Face's folders: what they compute, and back."""

import fnmatch
import importlib
import json

import huggingface_hub
import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_fixedhead import FixedHeadTextEmbedder, convert
from keras_fixedhead.convert import hugging_face
from keras_fixedhead.convert.bert_source import SPECIAL_TOKEN_TEXTS
from keras_fixedhead.convert.hugging_face import is_hub_name
from tests.keras_fixedhead.hugging_face import (
    CONFIG,
    VOCABULARY,
    change_file,
    make_tensors,
    run,
    write_model,
    write_modules,
)

TEXTS = ["Attention heads, a CAFÉ!", "head", "中a b. c", "zzz zyx attentions"]
NAME = "sentence-transformers/all-MiniLM-L6-v2"

pytestmark = pytest.mark.filterwarnings(
    "ignore:The tokenizer of .* maps special tokens"
)


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


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("activation", "pooler"),
    [("gelu", True), ("gelu_new", False), ("relu", True), ("silu", False)],
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


@pytest.mark.any_backend
def test_names_of_activations(tmp_path):
    # `ACT2FN` of `transformers`: those of exact values, and gelu by tanh.
    names = {
        "gelu": "gelu gelu_python",
        "gelu_approximate": "gelu_new gelu_fast gelu_accurate "
        "gelu_pytorch_tanh gelu_python_tanh",
        "silu": "silu swish",
    }
    folder = write_model(tmp_path)
    for ours, theirs in names.items():
        for name in theirs.split():
            change_file(folder / "config.json", {"hidden_act": name})
            source = convert.read_hugging_face(folder)
            assert source.config["activation"] == ours


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
    tensors = make_tensors(heads=True)
    for name in list(tensors):
        if "pooler" in name or "seq_relationship" in name:
            del tensors[name]
    folder = write_model(tmp_path, tensors=tensors)
    assert not convert.from_hugging_face(folder, "masked_lm").next_sentence


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", [], "must hold a JSON object"),
        ("adapter_config.json", {}, "adapter_config.json is of an adapter"),
        *(
            ("config.json", {field: value}, message)
            for field, value, message in [
                ("registered_name", "a>B", "a preset of KerasHub or of this"),
                ("model_type", "roberta", "'roberta'"),
                ("hidden_act", "gelu_10", "hidden_act.*'gelu_10'"),
                ("hidden_act", ["gelu"], "be a string"),
                ("pruned_heads", {"0": [1]}, "pruned_heads="),
                ("quantization_config", {"bits": 4}, "_config=.*no equivalent"),
                ("is_encoder_decoder", True, "is_encoder_decoder=True"),
                ("position_embedding_type", "relative_key", "'relative_key'"),
                ("is_decoder", True, "is_decoder=True"),
                ("hidden_size", 18, "shape"),
                ("hidden_size", 16, "be a multiple of"),
                ("hidden_size", "15", "`hidden_size` in.*'15'"),
                ("num_attention_heads", 0, "of 1 or more"),
                ("num_hidden_layers", 3, "lacks"),
                ("hidden_dropout_prob", "0", "be a number"),
                ("hidden_dropout_prob", 2, "from 0 to 1"),
                ("layer_norm_eps", True, "be a number"),
                ("auto_map", {"AutoModel": "a.B"}, "auto_map"),
            ]
        ),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, name, change, message):
    folder = write_model(tmp_path)
    change_file(folder / name, change)
    with pytest.raises(ValueError, match=message):
        convert.from_hugging_face(folder, "backbone")


@pytest.mark.any_backend
def test_fields_that_are_missing(tmp_path):
    config = {k: x for k, x in CONFIG.items() if k != "hidden_size"}
    folder = write_model(tmp_path, config, make_tensors())
    with pytest.raises(ValueError, match="config.json lacks hidden_size"):
        convert.read_hugging_face(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "how it pools.*`pooling_mode`"),
        (
            {"pooling_mode": "cls", "sequence_length": 20},
            "at most 19.*Received: 20",
        ),
        ({"task": "embedder"}, "`task` must be one of"),
    ],
)
def test_what_must_be_passed(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        convert.from_hugging_face(write_model(tmp_path), **arguments)


def test_left_out_is_said(tmp_path):
    source = convert.read_hugging_face(
        write_model(tmp_path, tensors=make_tensors(heads=True)),
        pooling_mode="mean",
    )
    left_out = source.left_out(source.build())
    assert "bert.pooler.dense.weight" in left_out
    assert "cls.predictions.bias" in left_out
    assert not source.left_out(source.build("masked_lm"))


@pytest.mark.any_backend
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


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_size", 4),
        ("head_size", [5, 6]),
        ("attention_window", 3),
        ("attention_scale", 0.3),
        ("causal", True),
        ("activation", "tanh"),
    ],
)
def test_back_only_where_the_format_has_a_place(
    tmp_path, make_backbone, name, value
):
    sizes = {"num_heads": 3, "hidden_dim": 15, "head_size": 5}
    backbone = make_backbone(**{**sizes, name: value})
    with pytest.raises(ValueError, match=f"no place for this `{name}`"):
        convert.to_hugging_face(backbone, tmp_path / "back")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_backbone(make_backbone):
    return make_backbone(num_heads=1, head_size=11)


@pytest.mark.any_backend
def test_back_keeps_whole_embeddings_only(tmp_path, small_backbone):
    embedder = FixedHeadTextEmbedder(small_backbone, embedding_dim=7)
    with pytest.raises(ValueError, match="embedding_dim=7"):
        convert.to_hugging_face(embedder, tmp_path / "back")


def test_back_leaves_what_is_there(tmp_path, small_backbone):
    with pytest.raises(FileExistsError, match="exists"):
        convert.to_hugging_face(small_backbone, tmp_path)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("module", "name", "error", "message"),
    [
        (
            safetensors.numpy,
            "save_file",
            safetensors.SafetensorError("No space"),
            "model.safetensors.*No space",
        ),
        (hugging_face, "write_tokenizer", OSError("no space"), "no space"),
    ],
)
def test_back_is_there_whole_or_not_at_all(
    tmp_path, make_embedder, monkeypatch, module, name, error, message
):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(module, name, fail)
    embedder = make_embedder(num_heads=1, head_size=11)
    with pytest.raises(OSError, match=message):
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


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [NAME, f"hf://{NAME}"])
def test_a_failed_download_says_how_to_get_the_folder(name, cache):
    with pytest.raises(
        FileNotFoundError,
        match=f"{NAME} is no folder here, and cannot be downloaded.*"
        rf"snapshot_download\('{NAME}'\) and pass the folder",
    ) as error:
        convert.from_hugging_face(name)
    assert "\n" not in str(error.value)


@pytest.mark.any_backend
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


@pytest.mark.any_backend
def test_no_pickle_is_downloaded(monkeypatch, tmp_path):
    def download(name, allow_patterns):
        assert name == NAME
        for file, wanted in {
            "model.safetensors": True,
            "model.safetensors.index.json": True,
            "1_Pooling/config.json": True,
            "vocab.txt": True,
            "pytorch_model.bin": False,
            "model.pt": False,
            "rust_model.ot": False,
            "tf_model.h5": False,
            "onnx/model.onnx": False,
            "modeling.py": False,
        }.items():
            found = any(fnmatch.fnmatch(file, x) for x in allow_patterns)
            assert found == wanted, file
        return write_model(tmp_path / "downloaded")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = convert.read_hugging_face(NAME)
    assert source.origin == str(tmp_path / "downloaded")


@pytest.mark.any_backend
def test_a_mistyped_path_is_not_downloaded(tmp_path, cache):
    (tmp_path / "runs").mkdir()
    assert is_hub_name("runz/minilm")
    for path in ("runs/minilm", "minilm", "/runz", "a/b/c"):
        assert not is_hub_name(path)
        with pytest.raises(FileNotFoundError, match="`folder` must be.*a repo"):
            convert.from_hugging_face(path)
    assert is_hub_name("hf://runs/minilm")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Received a file: file"):
        convert.from_hugging_face("file")
    with pytest.raises(FileNotFoundError, match="runs has no config.json"):
        convert.from_hugging_face("runs")
