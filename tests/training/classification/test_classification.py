"""Classification: what it learns, where it starts, what it predicts."""

import json

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
from tests.training.task_tests import (
    Case,
    TaskTests,
    cross_entropy,
    first_batch,
)
from training import finetune, predict
from training.classification.configs import NAMED_RUNS
from training.classification.task import ClassificationTask
from training.corpus.datasets import source_name
from training.engine.preset import SHAPE, make_encoder

# KerasHub's tasks have a compile() of their own.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`compile\\(\\)` was not called as part of model loading"
)

CASE = Case(
    finetune,
    NAMED_RUNS,
    tiny.classification,
    {
        "steps": 120,
        "global_batch_size": 40,
        "learning_rate": 0.02,
        "warmup_steps": 10,
        "dropout": 0.0,
        "head_dropout": 0.0,
        "log_interval": 20,
        "evaluation_interval": 60,
        "checkpoint_interval": 60,
    },
)
# What a run takes from the preset that it starts from.
FROM_INIT = dict.fromkeys([*SHAPE, "vocabulary"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_labelled(tmp_path_factory.mktemp("data"), count=400)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return CASE.train(data, tmp_path_factory.mktemp("run"))


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.tsv")
    other = {"head_dropout": 0.5}
    refused = [
        ({"vocabulary": None}, "`vocabulary` must .* vocabulary=None"),
        ({"sequence_length": 3}, "`sequence_length` .* Received: 3"),
        ({"sequence_length": 18}, "length=17. Received: 18"),
        ({"head_dropout": 1.0}, "`head_dropout` .* Received: 1.0"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
        ({"labels": ("high",)}, "train.tsv:.* must be one of high, .*'low'"),
        ({"columns": ("a", "b")}, "train.tsv:1: must have the columns a b"),
        ({"columns": ("a",)}, "`columns` must be"),
        ({"global_batch_size": 401}, "`global_batch_size` .* Received: 401"),
        ({"validation": ("dev.tsv",)}, "dev.tsv"),
    ]


def test_run_learns(run):
    *_, last = run.records
    # About half are of either class.
    assert last["accuracy_dev_one"] > 0.9 and last["accuracy_dev_two"] > 0.8
    trained = [record for record in run.records if "loss" in record]
    assert trained[-1]["accuracy"] > 0.9 > trained[0]["accuracy"]


def test_preset_is_the_classifier_that_was_trained(data, run):
    classifier = FixedHeadTextClassifier.from_preset(str(run.preset))
    assert classifier.labels == ["high", "low"]
    assert classifier.pooling_mode == "mean"
    assert classifier.preprocessor.sequence_length == 17
    confusion = json.loads((run.preset / "confusion.json").read_text())
    assert confusion["labels"] == classifier.labels
    *_, last = run.records
    for name in ("dev_one", "dev_two"):
        lines = (data / f"{name}.tsv").read_text().splitlines()[1:]
        first, second, labels = zip(*(line.split("\t") for line in lines))
        inputs = classifier.preprocessor((first, second), y=None)
        logits = np.asarray(classifier(inputs))
        true = np.array([classifier.labels.index(name) for name in labels])
        classes = logits.argmax(axis=-1)
        hits, losses = true == classes, cross_entropy(logits, true)
        assert last[f"accuracy_{name}"] == pytest.approx(hits.mean())
        assert last[f"heldout_loss_{name}"] == pytest.approx(
            losses.mean(), abs=1e-5
        )
        counts = np.zeros([2, 2], int)
        for pair in zip(true, classes):
            counts[pair] += 1
        assert confusion["counts"][name] == counts.tolist()


def masked_lm(folder, pooler):
    """A preset of pre-training, with a pooler or without."""
    FixedHeadMaskedLM(
        encoder(folder, pooler),
        FixedHeadMaskedLMPreprocessor(
            FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
        ),
        next_sentence=pooler,
    ).save_to_preset(str(folder))


def encoder(folder, pooler):
    model = tiny.pretraining(folder, folder).model
    return make_encoder(model, len(tiny.VOCABULARY), pooler=pooler)


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
    encoder(folder, pooler=True).save_to_preset(str(folder))
    FixedHeadTokenizer(tiny.VOCABULARY).save_to_preset(str(folder))


# The others differ in what reads them, not in what is trained.
@pytest.mark.parametrize(
    "write, pooling_mode, pooler",
    [
        (lambda to: tiny.embedder().save_to_preset(str(to)), "cls", False),
        (lambda to: masked_lm(to, pooler=False), "mean", False),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                (lambda to: masked_lm(to, pooler=True), "cls", True),
                (backbone, "cls", True),
                (cut_embedder, "max", False),
                (classifier, "mean", False),
            )
        ),
    ],
)
def test_starts_from_presets_of_every_task(
    data, tmp_path, write, pooling_mode, pooler
):
    write(tmp_path / "start")
    start = FixedHeadTextEmbedder.from_preset(str(tmp_path / "start"))
    task = CASE.task(data, tmp_path, **FROM_INIT, init=tmp_path / "start")
    assert task.model.pooling_mode == pooling_mode
    assert task.model.num_classes == 2
    assert task.model.backbone.pooler is pooler
    for layer in task.model.backbone.layers:
        if layer.weights:
            theirs = start.backbone.get_layer(layer.name)
            for one, two in zip(layer.get_weights(), theirs.get_weights()):
                np.testing.assert_array_equal(one, two)
    # Nothing is left that would have no gradient.
    batch = first_batch(task)
    with tf.GradientTape() as tape:
        loss, _ = task.loss(batch, task.totals(batch))
    values = [variable.value for variable in task.model.trainable_variables]
    assert None not in tape.gradient(loss, values)


@pytest.mark.slow
def test_a_run_goes_on_with_another_task(data, tmp_path):
    """Retrieval from an encoder that was pre-trained with a pooler."""
    masked_lm(tmp_path / "start", pooler=True)
    short = {"steps": 2, "warmup_steps": 1, "log_interval": 1}
    short |= {"evaluation_interval": 2, "attention_interval": 2}
    short |= {"checkpoint_interval": 2}
    changes = FROM_INIT | {"init": tmp_path / "start"} | short
    first = CASE.train(data, tmp_path / "one", **changes)
    pairs = tiny.write_pairs(tmp_path / "pairs")
    del changes["vocabulary"]
    changes["init"] = first.preset
    second = tiny.retrieval(pairs, tmp_path / "two", **changes)
    assert finetune.main(tiny.flags(second, "retrieval")) == 0
    embedder = FixedHeadTextEmbedder.from_preset(
        str(tmp_path / "two" / "preset")
    )
    assert not embedder.backbone.pooler


@pytest.mark.parametrize("pooling_mode", ["cls", "mean"])
def test_operations_of_an_update(data, tmp_path, pooling_mode):
    """From the shapes of its products, as in masked_lm."""
    task = CASE.task(data, tmp_path, num_layers=2, pooling_mode=pooling_mode)
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
    task = CASE.task(data, tmp_path, dropout=0.0, head_dropout=0.0)
    batch = first_batch(task)
    logits = np.asarray(task.model(task.model_inputs(batch)))
    labels = batch["labels"].numpy()
    loss, metrics = task.loss(batch, task.totals(batch))
    expected = cross_entropy(logits, labels).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    hits = np.mean(logits.argmax(axis=-1) == labels)
    assert float(metrics["accuracy"]) == pytest.approx(hits)


def test_sources_that_do_not_fit(data, tmp_path):
    other, single = tmp_path / "dev_one.tsv", tmp_path / "single.tsv"
    other.write_text("sentence1\tsentence2\tlabel\na\tb\t0\n")
    single.write_text("text\tlabel\na\thigh\n")
    first = str(data / "dev_one.tsv")
    for changes, message in (
        ({"validation": ()}, "`validation` must name at least one"),
        ({"validation": (first, str(other))}, "Received 'dev_one' twice"),
        ({"validation": (str(other),)}, "the labels high, low .* Received: 0"),
        ({"validation": (str(single),)}, "must be of pairs .* single texts"),
        ({"init": tmp_path}, "`init` must be a preset folder"),
    ):
        with pytest.raises(ValueError, match=message):
            CASE.task(data, tmp_path, **changes)
    config = tiny.changed(tiny.classification(data, tmp_path), data=single)
    with pytest.raises(ValueError, match="two classes. Received: high"):
        ClassificationTask(config)


def test_what_was_left_out_is_said(data, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text((data / "train.tsv").read_text() + "a\tb\t-\n")
    config = tiny.changed(tiny.classification(data, tmp_path), data=path)
    assert ClassificationTask(config).warnings == [
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


def test_predictions_are_those_that_were_measured(data, run, tmp_path, capsys):
    output = tmp_path / "classes.jsonl"
    args = ["--task", "classification", "--model", str(run.preset)]
    args += ["--output", str(output), "--batch_size", "7", "--input"]
    assert predict.main([*args, str(data / "dev_two.tsv")]) == 0
    *_, last = run.records
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
