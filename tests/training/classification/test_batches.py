"""Labelled texts: every format, what is left out, bad rows, batches."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_fixedhead import (
    FixedHeadTextClassifierPreprocessor,
    FixedHeadTokenizer,
)
from tests.training import tiny
from training.classification.task import LabelledBatches
from training.corpus.texts import NO_LABEL, read_examples

NLI = ("entailment", "neutral", "contradiction")
DATA = pathlib.Path(__file__).parents[4] / "shared" / "data" / "nli"
BATCH = 6


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def rows(examples):
    second = examples.second or [None] * len(examples)
    names = [examples.names[label] for label in examples.labels]
    return list(zip(examples.first, second, names))


def test_glue_table(tmp_path):
    """Columns of its own names among others, no quoting, no consensus."""
    path = write(
        tmp_path / "dev_matched.tsv",
        "index\tsentence1\tsentence2\tlabel1\tgold_label",
        '0\t"She said\tno "way" \tneutral\tneutral',
        "1\ta\tb\tneutral\t-",
        "",
        "2\té\u2028f\tg\tentailment\tentailment",
    )
    examples = read_examples(path)
    assert rows(examples) == [
        ('"She said', 'no "way" ', "neutral"),
        ("é\u2028f", "g", "entailment"),
    ]
    assert examples.names == ("entailment", "neutral")
    assert examples.labels.dtype == np.int32
    assert examples.left_out == {NO_LABEL: 1}
    named = read_examples(path, labels=NLI)
    assert named.names == NLI and named.labels.tolist() == [1, 0]


def test_json_lines_are_the_same(tmp_path):
    path = write(
        tmp_path / "dev.jsonl",
        *(
            json.dumps({"sentence1": a, "sentence2": b, "gold_label": label})
            for a, b, label in (
                ("a", "b", "yes"),
                ("c", "", "-"),
                ("d", "e", "no"),
            )
        ),
    )
    examples = read_examples(path)
    assert rows(examples) == [("a", "b", "yes"), ("d", "e", "no")]
    assert examples.left_out == {NO_LABEL: 1}
    numbered = write(
        tmp_path / "numbered.jsonl",
        '{"t": "a", "n": 10}',
        '{"t": "b", "n": -1}',
        '{"t": "c", "n": 9}',
    )
    examples = read_examples(numbered, columns=("t", "n"))
    # In the order of numbers, which that of their names is not.
    assert examples.names == ("9", "10")
    assert examples.labels.tolist() == [1, 0] and examples.second is None


def test_quoted_table(tmp_path):
    path = write(tmp_path / "x.csv", "n,text", '1,"a, ""b""', 'c"', "0,d")
    examples = read_examples(path, columns=("text", "n"), labels=("no", "yes"))
    assert rows(examples) == [('a, "b"\nc', None, "yes"), ("d", None, "no")]


def test_table_without_a_header(tmp_path):
    path = write(
        tmp_path / "cola.tsv", "gj04\t1\t\tIt is.", "gj04\t0\t*\tIs it"
    )
    examples = read_examples(path, columns=("3", "1"))
    assert rows(examples) == [("It is.", None, "1"), ("Is it", None, "0")]
    with pytest.raises(
        ValueError, match="cola.tsv:1: must have the columns 4 "
    ):
        read_examples(path, columns=("4", "1"))


def test_labels_go_by_their_names(tmp_path):
    """Numbers in one file and names in another, as of SNLI and MNLI."""
    header = "premise\thypothesis\tlabel"
    path = write(tmp_path / "x.tsv", header, "a\tb\t2", "c\td\t0")
    named = read_examples(path, labels=NLI)
    assert rows(named) == [("a", "b", NLI[2]), ("c", "d", NLI[0])]
    again = named.renumbered(("contradiction", "entailment"), "x.tsv")
    assert rows(again) == rows(named) and again.labels.tolist() == [0, 1]
    # Which is which, nobody said.
    with pytest.raises(ValueError, match="x.tsv must have the labels entail"):
        read_examples(path).renumbered(NLI, "x.tsv")
    # A name that is a number is the name.
    stars = read_examples(path, labels=("2", "1", "0"))
    assert stars.labels.tolist() == [0, 2]


def test_checksum_is_of_the_content(tmp_path):
    path = write(tmp_path / "x.tsv", "text\tlabel", "a\t1", "b\t0")
    same = write(tmp_path / "y.csv", "label,text", "1,a", "0,b")
    assert read_examples(path).sha256 == read_examples(same).sha256
    other = write(tmp_path / "z.tsv", "text\tlabel", "a\t0", "b\t1")
    assert read_examples(path).sha256 != read_examples(other).sha256


@pytest.mark.parametrize(
    ("name", "lines", "columns", "message"),
    [
        (
            "x.tsv",
            ["a\tb", "1\t2"],
            (),
            "x.tsv:1: .* sentence1 .*Received: a b",
        ),
        (
            "x.tsv",
            ["text\tlabel", "a"],
            (),
            "x.tsv:2: must have 2 .*Received 1",
        ),
        (
            "x.tsv",
            ["text\tlabel", "a\t"],
            (),
            "x.tsv:2: 'label' must not be em",
        ),
        ("x.tsv", ["text\tlabel", "a\t-"], (), "x.tsv must hold .*: 1 without"),
        ("x.tsv", [], (), "x.tsv: must have the columns"),
        ("x.tsv", ["a\tb"], ("a",), "`columns` must be those .* Received: a"),
        ("x.tsv", ["a\tb"], ("c", "b"), "x.tsv:1: .* columns c b. Rec.* a b"),
        ("x.md", ["a"], (), r"x.md: must end in .tsv, .txt, .csv or .jsonl"),
        ("x.csv", ["text,label", '"a'], (), "x.csv:2: unexpected end of data"),
        ("x.jsonl", ["[]"], (), "x.jsonl:1: .* JSON object"),
        ("x.jsonl", ['{"text": "a"}'], (), "x.jsonl:1: must have the columns"),
        (
            "x.jsonl",
            ['{"text": "a", "label": 0}', '{"text": 1, "label": 0}'],
            (),
            "x.jsonl:2: 'text' must be a string. Received: 1",
        ),
        (
            "x.jsonl",
            ['{"text": "a", "label": 0}', '{"text": "b"}'],
            (),
            "x.jsonl:2: must have the columns text label. Received: text",
        ),
        (
            "x.jsonl",
            ['{"text": "a", "label": 0.5}'],
            (),
            "x.jsonl:1: 'label' must be a name or a whole number. .* 0.5",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, name, lines, columns, message):
    with pytest.raises(ValueError, match=message):
        read_examples(write(tmp_path / name, *lines), columns)


@pytest.mark.parametrize("label", ["maybe", "3", "-2"])
def test_bad_labels_are_named(tmp_path, label):
    path = write(tmp_path / "x.tsv", "text\tlabel", "a\t0", f"b\t{label}")
    with pytest.raises(ValueError, match=rf"x.tsv:3: .*0 to 2. .*'{label}'"):
        read_examples(path, labels=NLI)


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "x.tsv").write_bytes(b"text\tlabel\na\xff\t0\n")
    with pytest.raises(ValueError, match="x.tsv is not UTF-8"):
        read_examples(tmp_path / "x.tsv")


@pytest.mark.filterwarnings("ignore:label.. is deprecated:DeprecationWarning")
def test_tensorflow_datasets(tmp_path):
    tfds.core.add_data_dir(tmp_path)
    tfds.dataset_builders.store_as_tfds_dataset(
        name="inference",
        version="1.2.3",
        data_dir=tmp_path,
        split_datasets={
            "train": tf.data.Dataset.from_tensor_slices(
                {
                    "premise": ["a", "é", "c"],
                    "hypothesis": ["d", "e", "f"],
                    "label": [2, 0, -1],
                    "idx": [0, 1, 2],
                }
            )
        },
        features=tfds.features.FeaturesDict(
            {
                "premise": tfds.features.Text(),
                "hypothesis": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=NLI),
                "idx": tf.int32,
            }
        ),
        disable_shuffling=True,
    )
    # As `--data` hands it over.
    examples = read_examples(pathlib.Path("tfds:inference"))
    expected = [("a", "d", NLI[2]), ("é", "e", NLI[0])]
    assert rows(examples) == expected
    assert examples.left_out == {NO_LABEL: 1}
    part = read_examples("tfds:inference:train[1:]", labels=NLI)
    assert rows(part) == expected[1:]
    with pytest.raises(ValueError, match="Unknown split 'dev'"):
        read_examples("tfds:inference:dev")
    with pytest.raises(ValueError, match="must have the columns text label"):
        read_examples("tfds:inference", columns=("text", "label"))


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tiny.write_labelled(tmp_path_factory.mktemp("data"), count=29)
    return read_examples(folder / "train.tsv")


def batches(packed=True, seed=3):
    preprocessor = FixedHeadTextClassifierPreprocessor(
        FixedHeadTokenizer(tiny.VOCABULARY), sequence_length=17
    )
    return LabelledBatches(BATCH, preprocessor, seed, packed)


def context(workers, worker, replicas):
    return tf.distribute.InputContext(workers, worker, replicas)


def take(examples, made, count, first_step=0, context=None):
    context = context or tf.distribute.InputContext()
    dataset = made.training(examples, context, first_step)
    return list(dataset.take(count).as_numpy_iterator())


def found(batch):
    """The rows of a batch as words and label."""
    return [
        (" ".join(tiny.VOCABULARY[i] for i in row if i > 4), int(label))
        for row, label in zip(batch["token_ids"], batch["labels"])
    ]


def test_batches_are_the_examples(examples):
    whole = {
        (f"{a} {b}", int(label))
        for a, b, label in zip(examples.first, examples.second, examples.labels)
    }
    drawn = [
        [row for batch in take(examples, made, 4) for row in found(batch)]
        for made in (batches(), batches(seed=4))
    ]
    # What does not fill a batch is left out of an epoch.
    assert len(drawn[0]) == 24 and set(drawn[0]) <= whole
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    "first_step",
    [4, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 6))],
)
def test_starting_later_gives_the_batches_of_later(examples, first_step):
    whole = take(examples, batches(), 8)
    rest = take(examples, batches(), 8 - first_step, first_step)
    for one, two in zip(whole[first_step:], rest, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [
        (2, 2),
        pytest.param(1, 2, marks=pytest.mark.slow),
        pytest.param(3, 6, marks=pytest.mark.slow),
    ],
)
def test_replicas_divide_the_batch(examples, workers, replicas):
    made = batches(packed=False)
    each = replicas // workers
    parts = [
        take(examples, made, 2 * each, 0, context(workers, worker, replicas))
        for worker in range(workers)
    ]
    for step, whole in enumerate(take(examples, made, 2)):
        mine = [
            part for worker in parts for part in worker[step * each :][:each]
        ]
        for name, values in whole.items():
            np.testing.assert_array_equal(
                np.concatenate([part[name] for part in mine]), values
            )


def test_batches_are_as_long_as_they_have_to_be(examples):
    (packed,), (padded,) = (
        take(examples, batches(packed), 1) for packed in (True, False)
    )
    longest = packed["padding_mask"].sum(axis=1).max()
    assert packed["token_ids"].shape == (BATCH, longest)
    assert padded["token_ids"].shape == (BATCH, 17)
    element = (
        batches(False)
        .training(examples, tf.distribute.InputContext(), 0)
        .element_spec
    )
    assert element["token_ids"].shape[1] == 17
    assert {v.dtype for v in packed.values()} == {np.dtype("int32")}


def test_evaluation_has_every_example_once(examples):
    seen = []
    for worker in range(2):
        dataset = batches().evaluation(examples, context(2, worker, 2))
        for batch in dataset.as_numpy_iterator():
            assert len(batch["index"]) == BATCH // 2
            for index, row in zip(batch["index"], found(batch)):
                if index >= 0:
                    a, b = examples.first[index], examples.second[index]
                    assert row == (f"{a} {b}", examples.labels[index])
                    seen.append(index)
    assert sorted(seen) == list(range(29))


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason=f"wants files in {DATA}")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mnli_dev_matched.jsonl", 9815),
        ("snli_train_33k.tsv", 33069),
        ("snli_validation.tsv", 9842),
        ("snli_test.tsv", 9824),
    ],
)
def test_real_files(name, count):
    examples = read_examples(DATA / name, labels=NLI)
    assert len(examples) + examples.left_out.total() == count
    shares = np.bincount(examples.labels) / len(examples)
    assert len(shares) == 3 and (abs(shares - 1 / 3) < 0.03).all()
