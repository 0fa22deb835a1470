"""Hugging Face's folders: what they compute, and back."""

import json

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from keras_fixedhead import FixedHeadTextEmbedder, convert
from keras_fixedhead.convert import hugging_face
from keras_fixedhead.convert.bert_source import SPECIAL_TOKEN_TEXTS
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests.keras_fixedhead.hugging_face import (
    CONFIG,
    VOCABULARY,
    make_tensors,
    run,
    write_json,
    write_model,
    write_modules,
)

TEXTS = ["Attention heads, a CAFÉ!", "head", "中a b. c", "zzz zyx attentions"]

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
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
@pytest.mark.parametrize("pooler", [True, False])
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
            write_json(folder / "config.json", {**CONFIG, "hidden_act": name})
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


def old_norms(tensors):
    for name in list(tensors):
        if "LayerNorm" in name:
            new = name.replace("weight", "gamma").replace("bias", "beta")
            tensors[new] = tensors.pop(name)


def buffers(tensors):
    tensors["embeddings.position_ids"] = np.arange(19)[None]
    tensors["embeddings.token_type_ids"] = np.zeros((1, 19), "int64")


def prefix(tensors):
    for name in list(tensors):
        tensors[f"bert.{name}"] = tensors.pop(name)


def tied_twice(tensors):
    prefix(tensors)
    tensors.update(make_tensors(heads=True))
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = words.copy()
    tensors["cls.predictions.decoder.bias"] = tensors[
        "cls.predictions.bias"
    ].copy()


@pytest.mark.any_backend
@pytest.mark.parametrize("spelling", [old_norms, buffers, prefix, tied_twice])
def test_other_spellings(tmp_path, batch, spelling):
    tensors = make_tensors()
    spelling(tensors)
    folder = write_model(tmp_path, tensors=tensors)
    assert_equal_outputs(
        convert.from_hugging_face(folder, task="backbone")(batch),
        run(make_tensors(), batch),
        batch["padding_mask"],
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_as_it_is(tmp_path, dtype):
    tensors = {k: x.astype(dtype) for k, x in make_tensors().items()}
    folder = write_model(tmp_path, tensors=tensors)
    backbone = convert.from_hugging_face(folder, task="backbone")
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(backbone.pooled_dense.kernel),
        tensors["pooler.dense.weight"].astype("float32").T,
    )


@pytest.mark.any_backend
def test_shards(tmp_path, batch):
    tensors = make_tensors()
    folder = write_model(tmp_path, tensors=tensors)
    (folder / "model.safetensors").unlink()
    shards = {
        name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)
    }
    for shard in set(shards.values()):
        safetensors.numpy.save_file(
            {k: x for k, x in tensors.items() if shards[k] == shard},
            folder / shard,
        )
    write_json(folder / "model.safetensors.index.json", {"weight_map": shards})
    assert_equal_outputs(
        convert.from_hugging_face(folder, task="backbone")(batch),
        run(tensors, batch),
        batch["padding_mask"],
    )
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-1.safetensors"):
        convert.from_hugging_face(folder, task="backbone")


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        (
            {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True},
            "max",
        ),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_embedder_pools_as_its_folder_says(tmp_path, pooling, mode):
    folder = write_model(tmp_path)
    write_modules(folder, pooling, normalize=mode == "cls")
    embedder = convert.from_hugging_face(folder)
    assert embedder.pooling_mode == mode
    assert embedder.normalize == (mode == "cls")


@pytest.mark.parametrize(
    "mode", ["mean", "cls", pytest.param("max", marks=pytest.mark.slow)]
)
def test_embeddings_are_the_pooled_tokens(tmp_path, mode):
    tensors = make_tensors()
    folder = write_model(tmp_path, tensors=tensors)
    write_modules(folder, {"pooling_mode": mode})
    embedder = convert.from_hugging_face(folder)
    batch = embedder.preprocessor(TEXTS)
    batch = {k: keras.ops.convert_to_numpy(x) for k, x in batch.items()}
    rows = []
    for tokens, mask in zip(
        run(tensors, batch)["sequence_output"], batch["padding_mask"]
    ):
        tokens = tokens[mask.astype(bool)]
        row = {
            "mean": tokens.mean(axis=0),
            "cls": tokens[0],
            "max": tokens.max(axis=0),
        }[mode]
        rows.append(row / np.linalg.norm(row))
    np.testing.assert_allclose(
        embedder.encode_text(TEXTS, verbose=0), rows, atol=1e-5
    )


@pytest.mark.any_backend
def test_lengths_and_prompts_of_both_versions(tmp_path):
    folder = write_model(tmp_path)
    write_modules(
        folder,
        sentence_bert_config={"max_seq_length": 13, "do_lower_case": False},
        config_sentence_transformers={
            "prompts": {"query": "a: ", "document": ""},
            "default_prompt_name": "query",
        },
    )
    source = convert.read_hugging_face(folder)
    assert source.sequence_length == 13
    assert source.prompts == {"query": "a: "}
    assert source.default_prompt == "query"
    embedder = source.build()
    assert embedder.preprocessor.sequence_length == 13
    assert embedder.preprocessor.prompts == {"query": "a: "}

    write_json(folder / "sentence_bert_config.json", {})
    check_length_of_the_tokenizer(folder)


def check_length_of_the_tokenizer(folder):
    # Without a limit it is an integer of a float, `int(1e30)`, or the float.
    for length, expected in ((11, 11), (int(1e30), 19), (1e30, 19), (512, 19)):
        for name in ("model_max_length", "max_len"):
            write_json(
                folder / "tokenizer_config.json",
                {"do_lower_case": True, name: length},
            )
            source = convert.read_hugging_face(folder)
            assert source.sequence_length == expected


@pytest.mark.any_backend
def test_the_length_of_a_folder_without_modules(tmp_path):
    folder = write_model(tmp_path)
    assert convert.read_hugging_face(folder).sequence_length is None
    check_length_of_the_tokenizer(folder)
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "model_max_length": 7},
    )
    model = convert.from_hugging_face(folder, pooling_mode="cls")
    assert model.preprocessor.sequence_length == 7


@pytest.mark.any_backend
def test_the_encoder_in_a_folder_of_its_own(tmp_path):
    # As version 1 of sentence-transformers writes it.
    write_model(tmp_path)
    write_modules(tmp_path, {"pooling_mode_cls_token": True})
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    write_json(tmp_path / "modules.json", modules)
    (tmp_path / "0_Transformer").mkdir()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ):
        (tmp_path / name).rename(tmp_path / "0_Transformer" / name)
    write_json(tmp_path / "config.json", {"__version__": "1.0.0"})
    write_json(
        tmp_path / "0_Transformer" / "sentence_bert_config.json",
        {"max_seq_length": 7},
    )
    embedder = convert.from_hugging_face(tmp_path)
    assert embedder.pooling_mode == "cls"
    assert embedder.preprocessor.sequence_length == 7


@pytest.mark.any_backend
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=repr)
def test_ends_of_lines_are_no_tokens(tmp_path, end):
    folder = write_model(tmp_path)
    lines = "".join(f"{token}{end}" for token in VOCABULARY)
    (folder / "vocab.txt").write_bytes(lines.encode())
    assert convert.read_hugging_face(folder).vocabulary == VOCABULARY


@pytest.mark.any_backend
def test_what_is_passed_counts_more_than_what_is_said(tmp_path):
    folder = write_model(tmp_path)
    write_modules(folder)
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


def write_fast_tokenizer(folder, **changes):
    """`tokenizer.json` as Hugging Face's library writes it."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {token: i for i, token in enumerate(VOCABULARY)},
            unk_token="[UNK]",
            max_input_chars_per_word=100,
        )
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", 3), ("[CLS]", 2)
    )
    tokenizer.enable_padding(length=7)
    file = json.loads(tokenizer.to_str())
    for path, value in changes.items():
        *parts, last = path.split("__")
        place = file
        for part in parts:
            place = place[part]
        place[last] = value
    write_json(folder / "tokenizer.json", file)


@pytest.mark.any_backend
@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_gives_the_same_ids(tmp_path, lowercase):
    folder = write_model(tmp_path)
    (folder / "vocab.txt").unlink()
    write_json(folder / "tokenizer_config.json", {"do_lower_case": lowercase})
    write_fast_tokenizer(folder, normalizer__lowercase=lowercase)
    source = convert.read_hugging_face(folder)
    assert source.lowercase == lowercase
    theirs = source.tokenize(TEXTS)
    assert len({tuple(ids) for ids in theirs}) == len(TEXTS)
    assert list(map(list, source.tokenizer()(TEXTS))) == theirs


SPECIAL = {
    "cls_token": "[CLS]",
    "mask_token": {"content": "[MASK]", "lstrip": True, "normalized": False},
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}


@pytest.mark.any_backend
@pytest.mark.parametrize("has_fast", [True, False])
def test_the_usual_special_tokens_may_be_named_anywhere(tmp_path, has_fast):
    folder = write_model(tmp_path)
    ids = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    if has_fast:
        write_fast_tokenizer(
            folder,
            added_tokens=[
                {
                    "id": i,
                    "content": token,
                    "special": True,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                }
                for token, i in ids.items()
            ],
        )
    write_json(folder / "added_tokens.json", ids)
    write_json(folder / "special_tokens_map.json", SPECIAL)
    write_json(
        folder / "tokenizer_config.json",
        {
            **SPECIAL,
            "do_lower_case": True,
            "do_basic_tokenize": True,
            "never_split": ["[MASK]"],
            "truncation_side": "right",
            "padding_side": "right",
            "additional_special_tokens": ["[SEP]"],
            "extra_special_tokens": {},
            "added_tokens_decoder": {
                str(i): {"content": token} for token, i in ids.items()
            },
        },
    )
    source = convert.read_hugging_face(folder)
    assert source.vocabulary == VOCABULARY
    # Theirs are ids within texts.
    assert source.tokenize(["a [SEP]b"]) == [[14, 3, 15]]
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "split_special_tokens": True},
    )
    source = convert.read_hugging_face(folder)
    assert source.tokenize(["a [SEP]b"]) == [[14, 1, 1, 1, 15]]


@pytest.mark.any_backend
def test_the_reference_is_what_the_source_says(tmp_path):
    # Not what was asked for, which would agree with itself.
    folder = write_model(tmp_path)
    source = convert.read_hugging_face(folder, lowercase=False)
    tokenizer = source.tokenizer()
    assert source.differing_texts(tokenizer, TEXTS) == [
        text for text in TEXTS if text != text.lower()
    ]


@pytest.mark.any_backend
@pytest.mark.parametrize("where", ["tokenizer_config", "tokenizer", "both"])
def test_left_truncation_may_be_given_up(tmp_path, where):
    folder = write_model(tmp_path)
    said = {"tokenizer_config": "left", "both": "right"}.get(where)
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "truncation_side": said},
    )
    if where != "tokenizer_config":
        write_fast_tokenizer(folder, truncation=LEFT)
    if where == "both":  # then the former counts, as in `transformers`
        convert.read_hugging_face(folder)
        return
    with pytest.raises(
        ValueError, match=f"{where}.json truncates.*truncation_side='right'"
    ):
        convert.read_hugging_face(folder)
    source = convert.read_hugging_face(folder, truncation_side="right")
    assert source.vocabulary == VOCABULARY
    with pytest.raises(ValueError, match="`truncation_side` must be.*'left'"):
        convert.read_hugging_face(folder, truncation_side="left")


@pytest.mark.any_backend
@pytest.mark.parametrize("flag", ["single_word", "normalized"])
def test_special_tokens_that_are_looked_for_otherwise(tmp_path, flag):
    folder = write_model(tmp_path)
    write_json(
        folder / "tokenizer_config.json",
        {
            "do_lower_case": True,
            "added_tokens_decoder": {"3": {"content": "[SEP]", flag: True}},
        },
    )
    convert.read_hugging_face(folder)
    with pytest.raises(ValueError, match=rf"{flag}=true for \[SEP\]"):
        convert.read_hugging_face(folder, special_tokens_in_strings=True)


@pytest.mark.any_backend
@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_in_texts(tmp_path, special):
    embedder = convert.from_hugging_face(
        write_model(tmp_path),
        pooling_mode="cls",
        special_tokens_in_strings=special,
    )
    found = [list(ids) for ids in embedder.preprocessor.tokenizer(["a [SEP]b"])]
    assert found == [[14, 3, 15] if special else [14, 1, 1, 1, 15]]


def without(name):
    def change(folder):
        (folder / name).unlink()

    change.__name__ = f"without {name}"
    return change


def file_of(name, content):
    def change(folder):
        write_modules(folder)
        write_json(folder / name, content)

    change.__name__ = f"{name}: {content}"
    return change


def config_of(name, value):
    def change(folder):
        write_json(folder / "config.json", {**CONFIG, name: value})

    change.__name__ = f"{name}={value}"
    return change


def tensors_of(change_tensors):
    def change(folder):
        tensors = make_tensors()
        change_tensors(tensors)
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")

    change.__name__ = change_tensors.__name__
    return change


def missing_tensor(tensors):
    del tensors["encoder.layer.1.output.dense.bias"]


def missing_of_a_prefix(tensors):
    prefix(tensors)
    old_norms(tensors)
    del tensors["bert.embeddings.word_embeddings.weight"]
    del tensors["bert.encoder.layer.1.output.LayerNorm.gamma"]


def unused_tensor(tensors):
    tensors["classifier.weight"] = np.zeros((2, 15), "float32")


def another_layer(tensors):
    tensors["encoder.layer.2.output.dense.bias"] = np.zeros(15, "float32")


def wrong_shape(tensors):
    tensors["encoder.layer.0.intermediate.dense.weight"] = np.zeros(
        (23, 14), "float32"
    )


def not_finite(tensors):
    tensors["embeddings.LayerNorm.bias"][3] = np.nan


def other_positions(tensors):
    tensors["embeddings.position_ids"] = np.arange(2, 21)[None]


def untied(tensors):
    tensors["cls.predictions.decoder.weight"] = np.zeros((41, 15), "float32")


def one_tensor_twice(tensors):
    name = "embeddings.LayerNorm.weight"
    tensors[f"bert.{name}"] = tensors[name]


def segments(tensors):
    tensors["embeddings.token_type_ids"] = np.ones((1, 19), "int64")


def integers(tensors):
    tensors["embeddings.LayerNorm.bias"] = np.zeros(15, "int8")


def float8(tensors):
    name = "embeddings.LayerNorm.bias"
    tensors[name] = tensors[name].astype(ml_dtypes.float8_e4m3fn)


def damaged(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def not_json(folder):
    (folder / "config.json").write_text("{")


def fast(**changes):
    def change(folder):
        write_fast_tokenizer(folder, **changes)

    change.__name__ = ",".join(changes)
    return change


def index(content):
    def change(folder):
        (folder / "model.safetensors").unlink()
        write_json(folder / "model.safetensors.index.json", content)

    change.__name__ = f"index: {content}"
    return change


def no_file(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def latin(folder):
    (folder / "vocab.txt").write_bytes("café\n".encode("latin-1"))


def other_vocabulary(folder):
    write_fast_tokenizer(folder)
    (folder / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")


def accents(folder):
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "strip_accents": False},
    )


def chinese(folder):
    write_json(
        folder / "tokenizer_config.json",
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    )


def silent_tokenizer(folder):
    write_json(folder / "tokenizer_config.json", {})


def silent_about_case(folder):
    silent_tokenizer(folder)
    write_fast_tokenizer(folder, normalizer__lowercase=False)


def tokenizer(**fields):
    def change(folder):
        write_json(
            folder / "tokenizer_config.json", {"do_lower_case": True, **fields}
        )

    change.__name__ = f"tokenizer: {fields}"
    return change


def processor(single, cls=2):
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]}
            for token, i in (("[CLS]", cls), ("[SEP]", 3))
        },
    }


def piece(kind, name, segment=0):
    return {kind: {"id": name, "type_id": segment}}


LEFT = {
    "direction": "Left",
    "max_length": 7,
    "strategy": "LongestFirst",
    "stride": 0,
}
LEFT_PADDING = {
    "strategy": "BatchLongest",
    "direction": "Left",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
START, END = piece("SpecialToken", "[CLS]"), piece("SpecialToken", "[SEP]")


def of_keras_hub(folder):
    write_json(folder / "config.json", {"registered_name": "a>B"})


def other_package(folder):
    write_modules(folder)
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers", "own"))


def normalized_twice(folder):
    write_modules(folder)
    path = folder / "modules.json"
    found = json.loads(path.read_text())
    write_json(path, [*found, found[-1]])


def two_encoders(folder):
    write_modules(folder)
    path = folder / "modules.json"
    found = json.loads(path.read_text())
    write_json(path, [found[0], *found])


def without_mask(folder):
    tokens = [token for token in VOCABULARY if token != "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")


def long_vocabulary(folder):
    with open(folder / "vocab.txt", "a") as file:
        file.writelines(f"##{i}\n" for i in range(99))


def modules(pooling=None, **files):
    def change(folder):
        write_modules(folder, pooling, **files)

    change.__name__ = ",".join([*(pooling or {}), *files])
    return change


def dense_module(folder):
    write_modules(folder)
    path = folder / "modules.json"
    dense = {"type": "sentence_transformers.models.Dense"}
    write_json(path, [*json.loads(path.read_text()), dense])


def lower_before_cased(folder):
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False})
    write_modules(folder, sentence_bert_config={"do_lower_case": True})


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (without("config.json"), OSError, "config.json"),
        (without("model.safetensors"), OSError, "no model.safetensors"),
        (without("vocab.txt"), ValueError, "vocabulary"),
        (not_json, ValueError, "config.json is not JSON"),
        (config_of("model_type", "roberta"), ValueError, "'roberta'"),
        (config_of("hidden_act", "gelu_10"), ValueError, "hidden_act.*'gelu_1"),
        (config_of("pruned_heads", {"0": [1]}), ValueError, "pruned_heads="),
        (
            config_of("quantization_config", {"bits": 4}),
            ValueError,
            "quantization_config=.*no equivalent",
        ),
        (
            config_of("is_encoder_decoder", True),
            ValueError,
            "is_encoder_decoder=True",
        ),
        (of_keras_hub, ValueError, "a preset of KerasHub or of this library"),
        (
            file_of("adapter_config.json", {}),
            ValueError,
            "adapter_config.json is of an adapter",
        ),
        (
            config_of("position_embedding_type", "relative_key"),
            ValueError,
            "position_embedding_type='relative_key'",
        ),
        (config_of("is_decoder", True), ValueError, "is_decoder=True"),
        (config_of("hidden_size", 18), ValueError, "shape"),
        (config_of("hidden_size", 16), ValueError, "be a multiple of"),
        (config_of("hidden_size", "15"), ValueError, "`hidden_size` in.*'15'"),
        (config_of("num_attention_heads", 0), ValueError, "of 1 or more"),
        (config_of("hidden_act", ["gelu"]), ValueError, "be a string"),
        (config_of("hidden_dropout_prob", "0"), ValueError, "be a number"),
        (config_of("hidden_dropout_prob", 2), ValueError, "from 0 to 1"),
        (config_of("layer_norm_eps", True), ValueError, "be a number"),
        (config_of("auto_map", {"AutoModel": "a.B"}), ValueError, "auto_map"),
        (
            config_of("tokenizer_class", "BertJapaneseTokenizer"),
            ValueError,
            "config.json names the tokenizer BertJapaneseTokenizer",
        ),
        (
            file_of(
                "tokenizer_config.json",
                {"tokenizer_class": "CharacterTokenizer"},
            ),
            ValueError,
            "tokenizer_config.json names the tokenizer CharacterTokenizer",
        ),
        (file_of("config.json", []), ValueError, "must hold a JSON object"),
        (file_of("modules.json", {}), ValueError, "must hold a list"),
        (file_of("modules.json", [{"path": ""}]), ValueError, "a `type`"),
        (file_of("modules.json", [{"type": 3}]), ValueError, "`type` in"),
        (
            file_of("sentence_bert_config.json", {"max_seq_length": -3}),
            ValueError,
            "over 2.*Received: -3",
        ),
        (
            file_of("sentence_bert_config.json", {"max_seq_length": "13"}),
            ValueError,
            "`max_seq_length` in.*be a number",
        ),
        (
            file_of("config_sentence_transformers.json", {"prompts": ["a"]}),
            ValueError,
            "`prompts` in",
        ),
        (
            file_of("config_sentence_transformers.json", {"prompts": {"q": 3}}),
            ValueError,
            "`q` in",
        ),
        (file_of("1_Pooling/config.json", []), ValueError, "Pooling/config"),
        (
            file_of("tokenizer_config.json", {"do_lower_case": "true"}),
            ValueError,
            "true or false",
        ),
        (file_of("tokenizer.json", {"model": "x"}), ValueError, "`model` in"),
        (latin, ValueError, "vocab.txt is not UTF-8"),
        (config_of("num_hidden_layers", 3), ValueError, "lacks"),
        (
            tensors_of(missing_tensor),
            ValueError,
            "lacks encoder.layer.1.output.dense.bias",
        ),
        (
            tensors_of(missing_of_a_prefix),
            ValueError,
            "lacks bert.embeddings.word_embeddings.weight, "
            "bert.encoder.layer.1.output.LayerNorm.gamma$",
        ),
        (tensors_of(unused_tensor), ValueError, "classifier.weight"),
        (
            tensors_of(another_layer),
            ValueError,
            "no place for: encoder.layer.2.output.dense.bias",
        ),
        (
            tensors_of(wrong_shape),
            ValueError,
            r"intermediate.dense.weight \(14, 23\) instead of \(15, 23\)",
        ),
        (tensors_of(not_finite), ValueError, "LayerNorm.bias.*not finite"),
        (
            tensors_of(other_positions),
            ValueError,
            r"embeddings.position_ids of.*must be 0, 1, 2.*\[ 2  3",
        ),
        (tensors_of(segments), ValueError, "must be 0 everywhere"),
        (tensors_of(untied), ValueError, "decoder.weight"),
        (tensors_of(one_tensor_twice), ValueError, "the same tensor"),
        (tensors_of(integers), ValueError, "LayerNorm.bias of.*holds int8"),
        (tensors_of(float8), ValueError, "model.safetensors.*float8_e4m3fn"),
        (index({}), ValueError, "no `weight_map`"),
        (index({"weight_map": {"a": 3}}), ValueError, "`a` in"),
        (no_file, OSError, "model.safetensors cannot be read"),
        (damaged, ValueError, "model.safetensors is damaged"),
        (pickled, ValueError, "pytorch_model.bin.*refused"),
        (fast(model__type="BPE"), ValueError, "not BERT's.*'BPE'"),
        (fast(model__unk_token="<unk>"), ValueError, "unk_token"),
        (fast(normalizer__type="NFC"), ValueError, "normalizer"),
        (fast(normalizer__clean_text=False), ValueError, "clean_text"),
        (fast(normalizer__lowercase=False), ValueError, "Pass `lowercase`"),
        (fast(normalizer__strip_accents=False), ValueError, "strip_accents"),
        (
            fast(added_tokens=[{"content": "<x>"}]),
            ValueError,
            "tokenizer.json adds the token '<x>'",
        ),
        (fast(added_tokens=[{}]), ValueError, "adds the token"),
        (
            file_of("added_tokens.json", {"<x>": 41}),
            ValueError,
            "added_tokens.json adds the token '<x>'",
        ),
        (file_of("added_tokens.json", {"a": 14}), ValueError, "the token 'a'"),
        (
            file_of("added_tokens.json", {"[CLS]": 5}),
            ValueError,
            r"gives \[CLS\] the id 5, which is not its line",
        ),
        (file_of("added_tokens.json", {"a": "b"}), ValueError, "an integer"),
        (
            tokenizer(added_tokens_decoder={"41": {"content": "<x>"}}),
            ValueError,
            "tokenizer_config.json adds the token '<x>'.*_decoder",
        ),
        (
            tokenizer(added_tokens_decoder={"9": {"content": "[SEP]"}}),
            ValueError,
            r"\[SEP\] the id 9",
        ),
        (
            tokenizer(added_tokens_decoder={"x": {"content": "[SEP]"}}),
            ValueError,
            "ids as keys. Received: 'x'",
        ),
        (
            tokenizer(additional_special_tokens=["<x>"]),
            ValueError,
            "tokenizer_config.json adds the token '<x>'.*additional",
        ),
        (
            tokenizer(extra_special_tokens={"x": "<x>"}),
            ValueError,
            "adds the token '<x>'.*extra",
        ),
        (
            file_of(
                "special_tokens_map.json",
                {"additional_special_tokens": [{"content": "<x>"}]},
            ),
            ValueError,
            "special_tokens_map.json adds the token '<x>'",
        ),
        (tokenizer(bos_token="<x>"), ValueError, "'<x>'.*bos_token"),
        (
            tokenizer(cls_token="[SEP]"),
            ValueError,
            r"cls_token='\[SEP\]', which must be '\[CLS\]'",
        ),
        (
            file_of("special_tokens_map.json", {"unk_token": "<unk>"}),
            ValueError,
            "special_tokens_map.json has unk_token='<unk>'",
        ),
        (
            tokenizer(do_basic_tokenize=False),
            ValueError,
            "do_basic_tokenize=False",
        ),
        (tokenizer(never_split=["a"]), ValueError, r"never_split=\['a'\]"),
        (tokenizer(wordpieces_prefix="_"), ValueError, "wordpieces_prefix='_'"),
        (tokenizer(clean_text=False), ValueError, "clean_text=False"),
        (
            tokenizer(auto_map={"AutoTokenizer": ["a.B", None]}),
            ValueError,
            "the tokenizer's own code",
        ),
        (
            tokenizer(padding_side="left"),
            ValueError,
            "tokenizer_config.json pads on the left",
        ),
        (
            fast(padding=LEFT_PADDING),
            ValueError,
            "tokenizer.json pads on the left",
        ),
        (silent_about_case, ValueError, "without a do_lower_case.*Pass `lower"),
        (
            fast(
                post_processor=processor(
                    [START, piece("Sequence", "A"), END], 7
                )
            ),
            ValueError,
            r"post_processor.*for 'a b' the ids \[7, ",
        ),
        (
            fast(
                post_processor=processor(
                    [START, piece("Sequence", "A", 1), END]
                )
            ),
            ValueError,
            r"the segments \[0, 1, 1, 0\]",
        ),
        (fast(model__vocab=[]), ValueError, "`vocab` in"),
        (fast(model__vocab={"[PAD]": "0"}), ValueError, "an integer"),
        (fast(post_processor=None), ValueError, r"post_processor.*\[\]"),
        (fast(post_processor={"type": "x"}), ValueError, "cannot be read"),
        (fast(model__vocab={"[PAD]": 1}), ValueError, "from 0 on"),
        (other_vocabulary, ValueError, "Remove the wrong one"),
        (accents, ValueError, "strip_accents=False"),
        (chinese, ValueError, "Chinese"),
        (silent_tokenizer, ValueError, "`lowercase`: pass it"),
        (without_mask, ValueError, r"lacks \[MASK\]"),
        (long_vocabulary, ValueError, "139 tokens, its embedding table 41"),
        (dense_module, ValueError, "Pooling, Normalize, Dense"),
        (normalized_twice, ValueError, "Normalize, Normalize. There must"),
        (two_encoders, ValueError, "has 2 modules Transformer"),
        (other_package, ValueError, "own.models.Transformer, which is not"),
        (
            modules(config_sentence_transformers={"truncate_dim": 7}),
            ValueError,
            "truncate_dim=7",
        ),
        (
            modules(config_sentence_transformers={"model_type": "Sparse"}),
            ValueError,
            "model_type='Sparse'",
        ),
        (
            modules(sentence_bert_config={"query_length": 7}),
            ValueError,
            "query_length=7",
        ),
        (
            modules(sentence_bert_config={"tokenizer_args": {"a": 1}}),
            ValueError,
            "tokenizer_args=",
        ),
        (modules({"pooling_mode": 3}), ValueError, "one way.*3"),
        (modules({"pooling_mode": "lasttoken"}), ValueError, "lasttoken"),
        (modules({"pooling_mode": ["mean", "max"]}), ValueError, "one way"),
        (
            modules({"pooling_mode_mean_sqrt_len_tokens": True}),
            ValueError,
            "mean_sqrt_len_tokens",
        ),
        (
            modules({"pooling_mode": "mean", "include_prompt": False}),
            ValueError,
            "include_prompt",
        ),
        (
            modules(sentence_bert_config={"max_seq_length": 512}),
            ValueError,
            None,
        ),
        (lower_before_cased, ValueError, "lower-cases before"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_errors_name_what_is_wrong(tmp_path, change, error, message):
    folder = write_model(tmp_path)
    change(folder)
    if message is None:  # the limit is that of the positions
        embedder = convert.from_hugging_face(folder)
        assert embedder.preprocessor.sequence_length == 19
        return
    with pytest.raises(error, match=message):
        convert.from_hugging_face(
            folder,
            **(
                {}
                if (folder / "modules.json").exists()
                else {"pooling_mode": "cls"}
            ),
        )


def test_pooling_has_to_be_known(tmp_path):
    with pytest.raises(ValueError, match="how it pools.*`pooling_mode`"):
        convert.from_hugging_face(write_model(tmp_path))


def test_length_beyond_the_positions(tmp_path):
    with pytest.raises(ValueError, match="at most 19.*Received: 20"):
        convert.from_hugging_face(
            write_model(tmp_path), pooling_mode="cls", sequence_length=20
        )


def test_unknown_task(tmp_path):
    with pytest.raises(ValueError, match="`task` must be one of"):
        convert.from_hugging_face(write_model(tmp_path), task="embedder")


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
@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("task", ["text_embedder", "masked_lm", "backbone"])
def test_there_and_back(tmp_path, heads, task):
    if task == "masked_lm" and not heads:
        pytest.skip("it needs heads")
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
    if task != "backbone":
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
        np.testing.assert_array_equal(
            embedder.encode_text(TEXTS, verbose=0),
            model.encode_text(TEXTS, verbose=0),
        )


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "arguments",
    [
        {"head_size": 4},
        {"head_size": [5, 6]},
        {"attention_window": 3},
        {"attention_scale": 0.3},
        {"causal": True},
        {"activation": "tanh"},
    ],
    ids=str,
)
def test_back_only_where_the_format_has_a_place(
    tmp_path, make_backbone, arguments
):
    backbone = make_backbone(
        **{"num_heads": 3, "hidden_dim": 15, "head_size": 5, **arguments}
    )
    with pytest.raises(
        ValueError, match=f"no place for this `{[*arguments][0]}`"
    ):
        convert.to_hugging_face(backbone, tmp_path / "back")
    assert not list(tmp_path.iterdir())


@pytest.mark.any_backend
def test_back_keeps_whole_embeddings_only(tmp_path, make_backbone):
    embedder = FixedHeadTextEmbedder(
        make_backbone(num_heads=1, head_size=11), embedding_dim=7
    )
    with pytest.raises(ValueError, match="embedding_dim=7"):
        convert.to_hugging_face(embedder, tmp_path / "back")


def test_back_leaves_what_is_there(tmp_path, make_backbone):
    backbone = make_backbone(num_heads=1, head_size=11)
    with pytest.raises(FileExistsError, match="exists"):
        convert.to_hugging_face(backbone, tmp_path)


@pytest.mark.any_backend
def test_back_says_what_cannot_be_written(tmp_path, make_backbone, monkeypatch):
    def fail(*args, **kwargs):
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="model.safetensors.*No space left"):
        convert.to_hugging_face(
            make_backbone(num_heads=1, head_size=11), tmp_path / "back"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.any_backend
def test_back_is_there_whole_or_not_at_all(
    tmp_path, make_embedder, monkeypatch
):
    def fail(*args):
        raise OSError("no space")

    monkeypatch.setattr(hugging_face, "write_tokenizer", fail)
    with pytest.raises(OSError, match="no space"):
        convert.to_hugging_face(
            make_embedder(num_heads=1, head_size=11), tmp_path / "back"
        )
    assert not list(tmp_path.iterdir())
