"""Token classification as a verb: what it learns and predicts, its errors."""

import dataclasses

import numpy as np
import pytest

from keras_fixedhead import FixedHeadTokenClassifier
from tests.training import tiny
from training import finetune, predict
from training.engine.configs import StartConfig
from training.token_classification.configs import (
    TokenClassificationConfig,
    TokenLabelsConfig,
)
from training.token_classification.task import read_sentences

# KerasHub's tasks have a compile() of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)
CHANGES = {
    "steps": 90, "global_batch_size": 20, "learning_rate": 0.02,
    "dropout": 0.0, "head_dropout": 0.0, "warmup_steps": 10,
    "log_interval": 30, "evaluation_interval": 90, "checkpoint_interval": 30,
}  # fmt: skip
ONE_STEP = {
    "steps": 1, "log_interval": 1, "warmup_steps": 0,
    "evaluation_interval": 1, "checkpoint_interval": 1,
}  # fmt: skip


def flags(data, workdir, **changes):
    common = tiny._common(data / "train.conll", workdir, head_size=5)
    common["model"] = StartConfig(**dataclasses.asdict(common["model"]))
    config = TokenLabelsConfig(
        **common,
        tokens=TokenClassificationConfig(
            validation=str(data / "dev.conll"),
            sequence_length=9,  # most sentences fit
            vocabulary=data / "vocabulary.txt",
        ),
    )
    config = tiny.changed(config, **CHANGES | changes)
    args = tiny.flags(config, "token_labels")
    place = args.index("--column")
    return args[:place] + args[place + 2 :]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences in which a word begins an entity if it is one of four, and
    another one after it continues it."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(7)
    for name, count in {"train": 200, "dev": 31}.items():
        lines = []
        for _ in range(count):
            inside = False
            for number in rng.integers(0, 8, rng.integers(1, 9)):
                if number < 2:
                    label = "I-x" if inside else "B-x"
                else:
                    label = "O"
                inside = number < 2
                lines.append(f"{tiny.WORDS[number]}\t{label}\n")
            lines.append("\n")
        (folder / f"{name}.conll").write_text("".join(lines))
    (folder / "vocabulary.txt").write_text("\n".join(tiny.VOCABULARY) + "\n")
    return folder


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory):
    """A finished run, from scratch."""
    workdir = tmp_path_factory.mktemp("run") / "train"
    assert finetune.main(flags(data, workdir)) == 0
    return workdir


def test_run_learns(workdir):
    first, *_, last = (m for m in tiny.metrics(workdir) if "f1" in m)
    assert last["f1"] > 0.75 > 0.3 > first["f1"]
    assert last["accuracy"] > 0.9


def test_predicts_what_the_run_measured(data, workdir, tmp_path, capsys):
    output = tmp_path / "found.conll"
    args = ["--task", "token_classification", "--output", str(output)]
    args += ["--model", str(workdir / "preset"), "--batch_size", "7"]
    assert predict.main([*args, "--input", str(data / "dev.conll")]) == 0
    *_, last = tiny.metrics(workdir)
    assert f"f1 {last['f1']:.4f}" in capsys.readouterr().out
    found, true = map(read_sentences, (output, data / "dev.conll"))
    assert found.words == true.words
    assert true.score(found.labels)["accuracy"] == last["accuracy"]
    # Words alone are labelled the same way.
    words = tmp_path / "words.txt"
    words.write_text("\n\n".join("\n".join(row) for row in true.words))
    assert predict.main([*args, "--input", str(words), "--unlabelled"]) == 0
    assert read_sentences(output) == found
    assert "accuracy" not in capsys.readouterr().out


def test_the_loss_is_the_mean_over_words(data, tmp_path):
    """Rows of a batch have different numbers of words, and of pieces."""
    # Without padding to the right length, and with.
    losses = [
        tiny.metrics(workdir)[1]["loss"]
        for workdir in (tmp_path / "packed", tmp_path / "padded")
        if finetune.main(
            flags(data, workdir, packed=workdir.name == "packed", **ONE_STEP)
        )
        == 0
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    model = FixedHeadTokenClassifier.from_preset(
        str(tmp_path / "packed/preset")
    )
    assert model.labels == ["B-x", "I-x", "O"]
    assert losses[0] == pytest.approx(np.log(3), abs=0.2)


def test_bad_data(data, tmp_path, capsys):
    (tmp_path / "one.conll").write_text("a\tO\nb\tO\n")
    args = flags(data, tmp_path / "run")
    args[args.index("--data") + 1] = str(tmp_path / "one.conll")
    assert finetune.main(args) == 1
    error = capsys.readouterr().err
    assert "must have at least two labels. Received: O" in error


def test_labels_that_training_lacks_are_wrong(data, tmp_path, capsys):
    path = tmp_path / "dev.conll"
    path.write_text(f"{tiny.WORDS[0]}\tB-y\n{tiny.WORDS[5]}\tO\n")
    args = flags(data, tmp_path / "run", validation=str(path), **ONE_STEP)
    assert finetune.main(args) == 0
    assert "count as wrong: B-y" in capsys.readouterr().err
    *_, last = tiny.metrics(tmp_path / "run")
    assert last["accuracy"] <= 0.5
