"""Classification as a verb: what it learns, where it starts, its errors."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_fixedhead import (
    FixedHeadMaskedLM,
    FixedHeadMaskedLMPreprocessor,
    FixedHeadTextClassifier,
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTextEmbedder,
    FixedHeadTokenizer,
)
from tests.training import tiny
from training import finetune, predict
from training.classification.configs import NAMED_RUNS, ClassifyConfig
from training.classification.task import ClassificationTask
from training.corpus.datasets import source_name
from training.engine.encoder import SHAPE, make_encoder

# KerasHub's tasks have a compile() of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

# What a run takes from the preset that it starts from.
_FROM_INIT = dict.fromkeys([*SHAPE, "vocabulary"])


def flags(data, workdir, **changes):
    return tiny.flags(tiny.classification(data, workdir, **changes), "mnli")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_labelled(tmp_path_factory.mktemp("data"), count=400)


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory):
    """A finished run, from scratch."""
    workdir = tmp_path_factory.mktemp("run") / "train"
    changes = {"steps": 120, "global_batch_size": 40, "learning_rate": 0.02}
    changes |= {"dropout": 0.0, "head_dropout": 0.0, "warmup_steps": 10}
    changes |= {"log_interval": 20, "evaluation_interval": 60}
    args = flags(data, workdir, checkpoint_interval=60, **changes)
    assert finetune.main(args) == 0
    return workdir


def test_run_learns(workdir):
    *_, last = tiny.metrics(workdir)
    # About half are of either class.
    assert last["accuracy_dev_one"] > 0.9 and last["accuracy_dev_two"] > 0.8
    trained = [r for r in tiny.metrics(workdir) if "loss" in r]
    assert trained[-1]["accuracy"] > 0.9 > trained[0]["accuracy"]


def test_preset_is_the_classifier_that_was_trained(data, workdir):
    folder = workdir / "preset"
    classifier = FixedHeadTextClassifier.from_preset(str(folder))
    assert classifier.labels == ["high", "low"]
    assert classifier.pooling_mode == "mean"
    assert classifier.preprocessor.sequence_length == 17
    confusion = json.loads((folder / "confusion.json").read_text())
    assert confusion["labels"] == classifier.labels
    *_, last = tiny.metrics(workdir)
    for name in ("dev_one", "dev_two"):
        lines = (data / f"{name}.tsv").read_text().splitlines()[1:]
        first, second, labels = zip(*(line.split("\t") for line in lines))
        inputs = classifier.preprocessor((first, second), y=None)
        logits = np.asarray(classifier(inputs))
        true = np.array([classifier.labels.index(name) for name in labels])
        classes = logits.argmax(axis=-1)
        assert last[f"accuracy_{name}"] == pytest.approx(
            np.mean(true == classes)
        )
        exponentials = np.exp(logits)
        chosen = exponentials[range(len(true)), true] / exponentials.sum(-1)
        assert last[f"heldout_loss_{name}"] == pytest.approx(
            -np.log(chosen).mean(), abs=1e-5
        )
        counts = np.zeros([2, 2], int)
        for pair in zip(true, classes):
            counts[pair] += 1
        assert confusion["counts"][name] == counts.tolist()


def test_finished_run_says_so_and_another_is_refused(data, workdir, capsys):
    changes = {"steps": 120, "global_batch_size": 40, "learning_rate": 0.02}
    changes |= {"dropout": 0.0, "head_dropout": 0.0, "warmup_steps": 10}
    assert finetune.main(flags(data, workdir, **changes)) == 0
    assert "finished before" in capsys.readouterr().err
    changes["head_dropout"] = 0.5
    assert finetune.main(flags(data, workdir, **changes)) == 1
    error = capsys.readouterr().err
    assert "classification.head_dropout (there 0.0, now 0.5)" in error


def masked_lm(folder, pooler):
    """A preset of pre-training, with a pooler or without."""
    backbone = make_encoder(
        tiny.pretraining(folder, folder).model,
        len(tiny.VOCABULARY),
        pooler=pooler,
    )
    FixedHeadMaskedLM(
        backbone,
        FixedHeadMaskedLMPreprocessor(
            FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
        ),
        next_sentence=pooler,
    ).save_to_preset(str(folder))


def cut_embedder(folder):
    whole = tiny.embedder()
    FixedHeadTextEmbedder(
        whole.backbone,
        preprocessor=whole.preprocessor,
        pooling_mode="max",
        embedding_dim=7,
    ).save_to_preset(str(folder))


def classifier(folder):
    whole = tiny.embedder()
    FixedHeadTextClassifier(
        whole.backbone,
        5,
        FixedHeadTextClassifierPreprocessor(
            whole.preprocessor.tokenizer, sequence_length=17
        ),
        pooling_mode="mean",
    ).save_to_preset(str(folder))


def backbone(folder):
    """As `training.convert --task backbone` writes it."""
    make_encoder(
        tiny.pretraining(folder, folder).model,
        len(tiny.VOCABULARY),
        pooler=True,
    ).save_to_preset(str(folder))
    FixedHeadTokenizer(tiny.VOCABULARY).save_to_preset(str(folder))


STARTS = {
    "backbone": (backbone, "cls"),
    "embedder": (lambda folder: tiny.embedder().save_to_preset(folder), "cls"),
    "cut embedder": (cut_embedder, "max"),
    "masked_lm": (lambda folder: masked_lm(folder, True), "cls"),
    "masked_lm without pooler": (
        lambda folder: masked_lm(folder, False),
        "mean",
    ),
    "classifier": (classifier, "mean"),
}


# The others differ in what reads them, not in what is trained.
@pytest.mark.parametrize(
    "kind",
    [
        "embedder",
        "masked_lm without pooler",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("backbone", "cut embedder", "masked_lm", "classifier")
        ),
    ],
)
def test_starts_from_presets_of_every_task(data, tmp_path, kind):
    write, pooling_mode = STARTS[kind]
    write(tmp_path / "start")
    start = FixedHeadTextEmbedder.from_preset(str(tmp_path / "start"))
    changes = _FROM_INIT | {"init": tmp_path / "start"}
    task = ClassificationTask(
        tiny.classification(data, tmp_path / "run", **changes)
    )
    task.build()
    assert task.model.pooling_mode == pooling_mode
    assert task.model.num_classes == 2
    assert task.model.backbone.pooler is (kind in ("masked_lm", "backbone"))
    for layer in task.model.backbone.layers:
        if layer.weights:
            theirs = start.backbone.get_layer(layer.name)
            for one, two in zip(layer.get_weights(), theirs.get_weights()):
                np.testing.assert_array_equal(one, two)
    # Nothing is left that would have no gradient.
    batch = next(iter(task.training_dataset(tf.distribute.InputContext(), 0)))
    with tf.GradientTape() as tape:
        loss, _ = task.loss(batch, task.totals(batch))
    values = [variable.value for variable in task.model.trainable_variables]
    assert None not in tape.gradient(loss, values)


@pytest.mark.slow
def test_a_run_goes_on_with_another_task(data, tmp_path):
    """Retrieval from an encoder that was pre-trained with a pooler."""
    masked_lm(tmp_path / "start", True)
    changes = _FROM_INIT | {"init": tmp_path / "start", "steps": 2}
    changes |= {"warmup_steps": 1}
    changes |= {"evaluation_interval": 2, "attention_interval": 2}
    args = flags(data, tmp_path / "one", **changes)
    assert finetune.main(args) == 0
    pairs = tiny.write_pairs(tmp_path / "pairs")
    del changes["vocabulary"]
    changes["init"] = tmp_path / "one" / "preset"
    run = tiny.retrieval(pairs, tmp_path / "two", **changes)
    assert finetune.main(tiny.flags(run, "retrieval")) == 0
    embedder = FixedHeadTextEmbedder.from_preset(
        str(tmp_path / "two" / "preset")
    )
    assert not embedder.backbone.pooler


@pytest.mark.parametrize("pooling_mode", ["cls", "mean"])
def test_operations_of_an_update(data, tmp_path, pooling_mode):
    """From the shapes of its products, as in `test_masked_lm_task`."""
    task = ClassificationTask(
        tiny.classification(
            data, tmp_path, num_layers=2, pooling_mode=pooling_mode
        )
    )
    task.build()
    tokens, examples = 91.0, 7.0  # 13 each
    width, heads, inner = 11, 3 * 5, 19
    keys_and_values = 2 * (2 * width * heads)
    rest = 2 * (2 * width * heads) + 2 * (2 * 13 * heads)
    rest += 2 * (2 * width * inner)
    last = examples if pooling_mode == "cls" else tokens
    forward = 2 * tokens * keys_and_values + (tokens + last) * rest
    found = task.flops({"tokens": tokens, "examples": examples})
    assert found == pytest.approx(3 * forward)


def test_loss_is_the_mean_of_the_batch(data, tmp_path):
    task = ClassificationTask(
        tiny.classification(data, tmp_path, dropout=0.0, head_dropout=0.0)
    )
    task.build()
    batch = next(iter(task.training_dataset(tf.distribute.InputContext(), 0)))
    inputs = {name: batch[name] for name in task.model.input}
    logits = np.asarray(task.model(inputs))
    chosen = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    labels = batch["labels"].numpy()
    loss, metrics = task.loss(batch, task.totals(batch))
    assert float(loss) == pytest.approx(
        -np.log(chosen[range(6), labels]).mean(), rel=1e-4
    )
    assert float(metrics["accuracy"]) == pytest.approx(
        np.mean(logits.argmax(axis=-1) == labels)
    )


@pytest.mark.slow
def test_fixed_lengths_are_judged_the_same(data, tmp_path):
    judged = []
    for packed in (True, False):
        keras.utils.set_random_seed(3)
        task = ClassificationTask(
            tiny.classification(
                data, tmp_path, packed=packed, dropout=0.0, head_dropout=0.0
            )
        )
        task.build()
        context = tf.distribute.InputContext()
        batch = next(iter(task.training_dataset(context, 0)))
        loss, metrics = task.loss(batch, task.totals(batch))
        batch = next(iter(task.evaluation_dataset(context)))
        judged.append(
            [loss, metrics["accuracy"], task.evaluation_step(batch)["loss"]]
        )
        assert (batch["token_ids"].shape[1] == 17) is not packed
    for one, two in zip(*judged):
        np.testing.assert_allclose(one, two, rtol=1e-4)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"vocabulary": None},
            "`vocabulary` must .* Received: vocabulary=None",
        ),
        ({"sequence_length": 3}, "`sequence_length` .* Received: 3"),
        ({"sequence_length": 18}, "length=17. Received: 18"),
        ({"head_dropout": 1.0}, "`head_dropout` .* Received: 1.0"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
        (
            {"labels": ("high",)},
            "train.tsv:.* must be one of high, .*'low'",
        ),
        ({"columns": ("a", "b")}, "train.tsv:1: must have the columns a b"),
        ({"columns": ("a",)}, "`columns` must be"),
        ({"global_batch_size": 401}, "`global_batch_size` .* Received: 401"),
        ({"validation": ("dev.tsv",)}, "dev.tsv"),
    ],
)
def test_bad_values_are_one_line(change, message, data, tmp_path, capsys):
    assert finetune.main(flags(data, tmp_path / "run", **change)) == 1
    error = tiny.error(capsys)
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)


def test_sources_that_do_not_fit(data, tmp_path):
    other, single = tmp_path / "dev_one.tsv", tmp_path / "single.tsv"
    other.write_text("sentence1\tsentence2\tlabel\na\tb\t0\n")
    single.write_text("text\tlabel\na\thigh\n")
    first = str(data / "dev_one.tsv")
    for validation, message in (
        ((), "`validation` must name at least one"),
        ((first, str(other)), "Received 'dev_one' twice"),
        ((str(other),), "must have the labels high, low .* Received: 0"),
        ((str(single),), "must be of pairs of texts, .* single texts"),
    ):
        with pytest.raises(ValueError, match=message):
            ClassificationTask(
                tiny.classification(data, tmp_path, validation=validation)
            )
    changes = {"init": tmp_path}
    with pytest.raises(ValueError, match="`init` must be a preset folder"):
        ClassificationTask(tiny.classification(data, tmp_path, **changes))
    one = tmp_path / "one.tsv"
    one.write_text("text\tlabel\na\thigh\n")
    with pytest.raises(ValueError, match="two classes. Received: high"):
        ClassificationTask(
            tiny.changed(tiny.classification(data, tmp_path), data=one)
        )


def test_what_was_left_out_is_said(data, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text((data / "train.tsv").read_text() + "a\tb\t-\n")
    task = ClassificationTask(
        tiny.changed(tiny.classification(data, tmp_path), data=path)
    )
    assert task.warnings == [
        "1 examples of the training data left out: no label"
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/b/dev_matched.tsv", "dev_matched"),
        ("mnli-dev.v1.jsonl", "mnli_dev_v1"),
        ("tfds:glue/mnli:validation_matched", "validation_matched"),
        ("tfds:glue/mnli:2.0.0:test[:10%]", "test_10"),
        ("tfds:glue/mnli", "glue_mnli"),
    ],
)
def test_names_of_figures(source, name):
    assert source_name(source) == name


def test_confusion_by_hand(data, tmp_path):
    """Rows are true classes, columns the predicted ones."""
    task = ClassificationTask(tiny.classification(data, tmp_path))
    count = len(task._validation)
    outputs = {
        "index": np.arange(count),
        "class": np.ones(count, "int32"),
        "loss": np.linspace(0, 1, count),
    }
    figures = task.figures(outputs)
    task.build()
    task.save(tmp_path / "preset")
    confusion = json.loads((tmp_path / "preset" / "confusion.json").read_text())
    for name in ("dev_one", "dev_two"):
        lines = (data / f"{name}.tsv").read_text().splitlines()[1:]
        high = sum(line.endswith("\thigh") for line in lines)
        low = len(lines) - high
        assert high and low
        assert confusion["counts"][name] == [[0, high], [0, low]]
        assert figures[f"accuracy_{name}"] == low / len(lines)


@pytest.mark.parametrize("name", NAMED_RUNS)
def test_command_line(name, capsys):
    args = ["--config", name, "--data", "tfds:glue/mnli", "--workdir", "w"]
    args += ["--validation", "a.tsv", "b.tsv", "--init", "p"]
    config = finetune.parse(args)
    assert isinstance(config, ClassifyConfig)
    assert str(config.run.data) == "tfds:glue/mnli"
    assert config.classification.validation == ("a.tsv", "b.tsv")
    assert config.classification.labels[1] == "neutral"
    with pytest.raises(SystemExit):
        finetune.parse(args[:2])
    assert "--validation" in capsys.readouterr().err


def test_predictions_are_those_that_were_measured(
    data, workdir, tmp_path, capsys
):
    output = tmp_path / "classes.jsonl"
    args = ["--task", "classification", "--model", str(workdir / "preset")]
    args += ["--output", str(output), "--batch_size", "7", "--input"]
    assert predict.main([*args, str(data / "dev_two.tsv")]) == 0
    *_, last = tiny.metrics(workdir)
    said = capsys.readouterr().out
    assert f"accuracy {last['accuracy_dev_two']:.4f}" in said
    labelled = output.read_text()
    lines = (data / "dev_two.tsv").read_text().splitlines()
    records = [json.loads(line) for line in labelled.splitlines()]
    assert len(records) == len(lines) - 1
    for record in records:
        shares = record["probabilities"]
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
        assert record["label"] == max(shares, key=shares.get)
    # The same of texts without labels.
    texts = ["\t".join(line.split("\t")[:2]) for line in lines]
    (tmp_path / "texts.tsv").write_text("\n".join(texts) + "\n")
    args += [str(tmp_path / "texts.tsv"), "--unlabelled"]
    assert predict.main(args) == 0
    assert "accuracy" not in capsys.readouterr().out
    assert output.read_text() == labelled
