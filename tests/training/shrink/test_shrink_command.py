"""The shrink command: its draw of texts, its files and its errors."""

import itertools
import json
import random

import numpy as np
import pytest

from keras_fixedhead import FixedHeadTextEmbedder
from tests.training import tiny
from training.engine.preset import preset_sha256
from training.shrink import __main__ as shrink
from training.shrink.shrinking import sample


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "preset"
    tiny.embedder(prompts={"query": "one "}).save_to_preset(str(folder))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return tiny.write_texts(tmp_path_factory.mktemp("texts") / "texts.txt")


def args(source, texts, output, *more):
    return [
        *("--source", str(source), "--calibration", *map(str, texts)),
        *("--output", str(output), "--hidden_dim", "7", *more),
    ]


def test_preset_and_record(source, texts, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    lines = [{"text": f"{text} runs"} for text in tiny.texts(23)]
    other.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    output = tmp_path / "new" / "shrunk"
    more = ("--calibration_tokens", "200", "--heldout_texts", "14")
    more = (*more, "--num_layers", "1")
    assert shrink.main(args(source, [texts, other], output, *more)) == 0
    student = FixedHeadTextEmbedder.from_preset(str(output))
    backbone = student.backbone
    assert (backbone.hidden_dim, backbone.num_layers) == (7, 1)
    assert (backbone.num_heads, backbone.head_size) == (5, 9)
    assert student.preprocessor.prompts == {"query": "one "}
    record = json.loads((output / "run.json").read_text())
    figures = record["figures"]
    # As many of each file, and the rest of a text.
    assert 200 <= figures["tokens"] < 200 + 2 * 17
    assert len(figures["state_r2"]) == 2 and len(figures["logit_r2"]) == 1
    assert 0 < figures["heldout_neighbours@10"] <= 1
    origin = json.loads((output / "origin.json").read_text())
    assert origin == {
        "source_sha256": preset_sha256(source, "source"),
        "layers": figures["layers"],
        "channels": figures["channels"],
    }
    said = capsys.readouterr()
    assert "R2 of states" in said.out and "14 held-out texts" in said.out
    assert f"wrote {output}" in said.err


def test_sample_keeps_random_texts_of_bounded_size():
    texts = [f"text number {i:04}" for i in range(1000)]
    drawn = sample(iter(texts), 1600, random.Random(3))
    assert len(drawn) == 100 and len(set(drawn)) == 100
    assert drawn != sorted(drawn)
    # From all over the file, by the seed.
    assert min(drawn) < "text number 0100" < "text number 0900" < max(drawn)
    assert drawn == sample(iter(texts), 1600, random.Random(3))
    assert drawn != sample(iter(texts), 1600, random.Random(4))
    repeated = itertools.chain.from_iterable(zip(texts[:5], texts[:5]))
    assert sorted(sample(repeated, 10**6, random.Random(0))) == texts[:5]
    assert sample(iter(["", ""]), 10, random.Random(0)) == []


def test_few_texts_are_said(source, texts, tmp_path, capsys):
    assert shrink.main(args(source, [texts], tmp_path / "shrunk")) == 0
    said = capsys.readouterr()
    assert "tokens, not 40,000" in said.err
    # All texts were fitted to.
    assert "held-out" not in said.out


def test_errors_write_nothing(source, texts, tmp_path, capsys):
    output = tmp_path / "shrunk"
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    for arguments, message in (
        (args(source, [empty], output), "empty.txt has no text in it"),
        (args(tmp_path, [texts], output), "`source` must be a preset folder"),
        (args(source, [texts], output, "--hidden_dim", "14"), "`hidden_dim`"),
        (
            args(source, [texts], output, "--calibration_tokens", "0"),
            "`calibration_tokens` must be a positive integer",
        ),
        (
            args(source, [texts], output, "--heldout_texts", "-1"),
            "`heldout_texts` must be an integer of at least 0",
        ),
        (args(source, [tmp_path / "no"], output), "no"),
        (args(source, [texts], source), "exists. Choose another --output"),
    ):
        assert shrink.main(arguments) == 1
        assert message in tiny.error(capsys)
        assert not output.exists() and not [*tmp_path.glob("*.partial")]


@pytest.mark.slow
def test_seed_decides_the_draw(source, texts, tmp_path):
    found = []
    for number, seed in enumerate(("0", "0", "1")):
        output = tmp_path / str(number)
        more = ("--calibration_tokens", "150", "--seed", seed)
        assert shrink.main(args(source, [texts], output, *more)) == 0
        model = FixedHeadTextEmbedder.from_preset(str(output))
        found.append(model.encode_text(["one two"], verbose=0))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert abs(found[0] - found[2]).max() > 1e-4
