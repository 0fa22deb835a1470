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
    assert record["parameters"] == 110_106_428
    assert record["encoder_parameters"] == 109_482_240
    assert record["sequence_length"] == 512
    assert record["published"] is None
    record = run_json(capsys, "--preset fixed_d512_p128_h8")
    assert record["preset"] == "fixed_d512_p128_h8"
    assert record["published"]["mnli"] == 83.5
    text = run(capsys, "--preset bert_base")
    for part in "110,106,428", "109,482,240", "437,928,960", "144 of 144":
        assert part in text


def test_sizes(capsys):
    record = run_json(capsys, f"{SIZES} --head_size 7 --sequence_length 13")
    shape = EncoderShape(30522, 3, 5, 17, 19, 7, pooler=True)
    assert record["parameters"] == ParameterCount.of(shape).total
    others = "--vocabulary_size 97 --max_sequence_length 13 --num_segments 1"
    line = f"{SIZES} {others} --without_pooler --sequence_length 11"
    record = run_json(capsys, line)
    shape = EncoderShape(97, 3, 5, 17, 19, None, 13, 1)
    assert record["parameters"] == ParameterCount.of(shape).total
    assert record["smallest_head_size"] == 13


@pytest.mark.parametrize("budget", ["200M", "0.2B", "200000k", "200000000"])
def test_a_budget(capsys, budget):
    record = run_json(capsys, f"--parameters {budget} --count 2")
    first, second, standard = record["suggestions"]
    assert first["published"] == "fixed_d512_p128_h12"
    assert first["budget"] == 200_000_000
    assert first["cost"]["shape"] == {
        **presets.shape("fixed_d512_p128_h12"),
    }
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
    half = run_json(capsys, f"{line} --depth_share 0.5 --share 0.8")
    assert half["leaner"]["cost"]["shape"]["num_layers"] == 12
    assert half["leaner"]["budget_share"] <= 1
    assert "64 for each" in " ".join(run(capsys, line).split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "give one of `preset`"),
        ("--preset bert", "`preset` must be one of those"),
        ("--preset bert_base --num_layers 3", "`num_layers` does not go"),
        ("--preset bert_base --without_pooler", "`without_pooler` does not"),
        ("--preset bert_base --count 3", "`count` goes with `parameters`"),
        ("--preset bert_base --count 0", "`count` goes with `parameters`"),
        ("--preset bert_base --share 0.9", "`share` goes with `leaner`"),
        ("--preset bert_base --leaner --share 2", "`share` must be"),
        ("--preset lm1b_d256_p32_h8 --sequence_length 512", "at most the 256"),
        ("--num_layers 3", "Missing: num_heads, hidden_dim"),
        (SIZES.replace("5", "-5"), "`num_heads` must be a positive"),
        ("--parameters 1M", "`parameters` must be at least"),
        *(
            (f"--parameters {x}", f"whole number.*Received: parameters='{x}'")
            for x in ("1.5", "M", "inf", "nanM", "1G")
        ),
        ("--parameters 9M --leaner", "`leaner` does not go"),
        ("--parameters 9M --preset bert_base", "`preset` does not go"),
    ],
)
def test_errors(capsys, line, message):
    assert main([*line.split(), "--json"]) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert re.search(f"^keras_fixedhead.planner: error: .*{message}", errors)


def test_help(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "--preset fixed_d512_p128_h8" in text and "lm1b_wide_d256" in text
