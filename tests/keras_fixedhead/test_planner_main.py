"""The planner's command: tables to read, or JSON and nothing else."""

import json
import re

import pytest

from keras_fixedhead import presets
from keras_fixedhead.planner import EncoderShape, ParameterCount
from keras_fixedhead.planner.__main__ import main

pytestmark = pytest.mark.any_backend

SIZES = "--num_layers 3 --num_heads 5 --hidden_dim 17 --intermediate_dim 19"


def run(capsys, line):
    assert main(line.split()) == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    return printed


def run_json(capsys, line):
    return json.loads(run(capsys, f"{line} --json"))


def test_a_preset(capsys):
    record = run_json(capsys, "--preset bert_base --sequence_length 512")
    assert record["preset"] == "bert_base"
    assert record["parameters"] == 110_106_428
    assert record["sequence_length"] == 512
    assert record["published"] is None
    record = run_json(capsys, "--preset fixed_d512_p128_h8 --batch_size 7")
    assert record["published"]["mnli"] == 83.5
    assert record["batch_size"] == 7
    text = run(capsys, "--preset fixed_d512_p128_h12")
    for part in "192,892,732", "142.54 GFLOP", "12.88 GiB", "2,048", "21.6":
        assert part in text


def test_sizes(capsys):
    record = run_json(capsys, f"{SIZES} --head_size 7 --sequence_length 13")
    shape = EncoderShape(30522, 3, 5, 17, 19, 7, pooler=True)
    assert record["parameters"] == ParameterCount.of(shape).total
    others = "--vocabulary_size 97 --max_sequence_length 13"
    line = f"{SIZES} {others} --without_pooler --sequence_length 11"
    record = run_json(capsys, line)
    shape = EncoderShape(97, 3, 5, 17, 19, None, 13)
    assert record["parameters"] == ParameterCount.of(shape).total
    assert record["smallest_head_size"] == 13


@pytest.mark.parametrize("budget", ["0.2B", "200000k", "200000000"])
def test_a_budget(capsys, budget):
    record = run_json(capsys, f"--parameters {budget} --count 2")
    first, second, standard = record["suggestions"]
    assert first["published"] == "fixed_d512_p128_h12"
    assert first["budget"] == 200_000_000
    assert first["cost"]["shape"] == presets.shape("fixed_d512_p128_h12")
    assert second["published"] is None and not second["standard_heads"]
    assert standard["standard_heads"]


def test_a_budget_and_an_embedding(capsys):
    line = "--parameters 30M --sequence_length 64 --embedding_dim 256"
    text = run(capsys, line)
    assert "1. 8 layers, 32 heads of 64, d 256 (unmeasured)" in text
    assert "+ No head is under the 64 tokens" in text
    assert "- Unmeasured" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    line += " --vocabulary_size 9973 --count 1 --without_pooler"
    shapes = run_json(capsys, line)
    for each in shapes["suggestions"]:
        assert each["cost"]["shape"]["hidden_dim"] == 256
        assert each["cost"]["shape"]["vocabulary_size"] == 9973
        assert each["cost"]["shape"]["pooler"] is False


def test_leaner(capsys):
    line = "--preset fixed_d512_p128_h12 --leaner"
    record = run_json(capsys, line)
    assert record["parameters"] > record["leaner"]["cost"]["parameters"]
    assert record["leaner"]["cost"]["shape"]["num_layers"] == 14
    assert "64 for each" in " ".join(run(capsys, line).split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "give one of `preset`"),
        ("--num_layers 3", "Missing: num_heads, hidden_dim"),
        ("--preset bert", "`preset` must be one of"),
        ("--preset bert_base --without_pooler", "`without_pooler` does not"),
        ("--parameters 9M --preset bert_base", "`preset` does not go"),
        ("--parameters 9M --leaner", "`leaner` does not go"),
        ("--preset lm1b_d256_p32_h8 --sequence_length 512", "from 1 to 256"),
        (SIZES.replace("5", "-5"), "`num_heads` must be a positive"),
        *(
            (f"--parameters {x}", f"whole number.*Received: parameters='{x}'")
            for x in ("1.5", "nanM", "1G")
        ),
    ],
)
def test_errors(capsys, line, message):
    assert main([*line.split(), "--json"]) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert re.search(f"^keras_fixedhead.planner: error: .*{message}", errors)
