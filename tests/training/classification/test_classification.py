"""Classification: what it learns, where it starts, what it predicts."""

import functools
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
from tests.training.batch_tests import BATCH, BatchesTests, take
from tests.training.task_tests import (
    Case,
    TaskTests,
    cross_entropy,
    first_batch,
)
from training import finetune, predict
from training.classification.configs import NAMED_RUNS
from training.classification.task import ClassificationTask, LabelledBatches
from training.corpus.datasets import source_name
from training.corpus.texts import read_examples
from training.engine.preset import SHAPE, make_encoder

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
    functools.partial(tiny.write_labelled, count=400),
)
# What a run takes from the preset that it starts from.
FROM_INIT = dict.fromkeys([*SHAPE, "vocabulary"])


class TestVerb(TaskTests):
    case = CASE
    required = ("--validation", "dev.tsv")
    other = {"head_dropout": 0.5}
    refused = [
        ({"vocabulary": None}, "`vocabulary` must .* vocabulary=None"),
        ({"sequence_length": 18}, "length=17. Received: 18"),
        ({"head_dropout": 1.0}, "`head_dropout` .* Received: 1.0"),
        ({"pooling_mode": "sum"}, "`pooling_mode` .*'sum'"),
        ({"columns": ("a", "b")}, "train.tsv:2: must have the columns a b"),
    ]


def batches(packed, seed=3):
    preprocessor = FixedHeadTextClassifierPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
    )
    return LabelledBatches(BATCH, preprocessor, seed, packed)


def rows(drawn):
    """The words and the label of each row."""
    return [
        (" ".join(tiny.VOCABULARY[i] for i in row if i > 4), int(label))
        for batch in drawn
        for row, label in zip(batch["token_ids"], batch["labels"])
    ]


class TestBatches(BatchesTests):
    @pytest.fixture(scope="class")
    @classmethod
    def made(cls):
        return batches(packed=False)

    @pytest.fixture(scope="class")
    @classmethod
    def examples(cls, tmp_path_factory):
        folder = tiny.write_labelled(tmp_path_factory.mktemp("few"), count=29)
        return read_examples(folder / "train.tsv")

    def test_batches_are_the_examples(self, examples, whole):
        expected = {
            (f"{a} {b}", int(label))
            for a, b, label in zip(*examples.columns, examples.labels)
        }
        # What does not fill a batch is left out of an epoch.
        epoch = whole[:4]
        assert len(rows(epoch)) == 24 and set(rows(epoch)) <= expected
        assert {batch["token_ids"].shape for batch in epoch} == {(BATCH, 17)}
        packed = take(batches(packed=True, seed=4), examples, 4)
        assert rows(packed) != rows(epoch) and set(rows(packed)) <= expected
        for batch in packed:
            longest = batch["padding_mask"].sum(axis=1).max()
            assert batch["token_ids"].shape == (BATCH, longest)
            assert {v.dtype for v in batch.values()} == {np.dtype("int32")}


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
        counts = tf.math.confusion_matrix(true, classes).numpy()
        assert confusion["counts"][name] == counts.tolist()


def masked_lm(folder, pooler):
    """A preset of pre-training, with a pooler or without."""
    model = tiny.pretraining(folder, folder).model
    FixedHeadMaskedLM(
        make_encoder(model, len(tiny.VOCABULARY), pooler=pooler),
        FixedHeadMaskedLMPreprocessor(
            FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
        ),
        next_sentence=pooler,
    ).save_to_preset(str(folder))


# The others differ in what reads them, not in what is trained.
@pytest.mark.parametrize(
    "write, pooling_mode, pooler",
    [
        (lambda to: tiny.embedder().save_to_preset(str(to)), "cls", False),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                (lambda to: masked_lm(to, pooler=False), "mean", False),
                (lambda to: masked_lm(to, pooler=True), "cls", True),
            )
        ),
    ],
)
def test_starts_from_presets_of_other_tasks(
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

    def of(path):
        return tiny.changed(tiny.classification(data, tmp_path), data=path)

    for changes, message in (
        ({"validation": ()}, "`validation` must name at least one"),
        ({"validation": (first, str(other))}, "Received 'dev_one' twice"),
        ({"validation": (str(other),)}, "one of high, low .* Received: '0'"),
        ({"validation": (str(single),)}, "must be of single texts if the"),
    ):
        with pytest.raises(ValueError, match=message):
            CASE.task(data, tmp_path, **changes)
    with pytest.raises(ValueError, match="two classes. Received: high"):
        ClassificationTask(of(single))
    # What can be left out is.
    path = tmp_path / "train.tsv"
    path.write_text((data / "train.tsv").read_text() + "a\tb\t-\n")
    assert ClassificationTask(of(path)).warnings == [
        "1 examples of the training data left out: no label"
    ]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/b/dev_matched.tsv", "dev_matched"),
        ("mnli-dev.v1.jsonl", "mnli_dev_v1"),
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
