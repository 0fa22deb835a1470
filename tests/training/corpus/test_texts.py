"""Texts, labelled or not: every format, what is left out, bad rows."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from training.corpus.pairs import read_jsonl
from training.corpus.squad import read_questions
from training.corpus.texts import read_examples, read_rows, read_texts

NLI = ("entailment", "neutral", "contradiction")


def write(path, *lines):
    text = "".join(f"{line}\n" for line in lines)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def rows(examples):
    names = [examples.names[label] for label in examples.labels]
    return list(zip(*examples.columns, names))


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
    assert examples.left_out == 1
    named = read_examples(path, labels=NLI)
    assert named.names == NLI and named.labels.tolist() == [1, 0]


def test_json_lines_are_the_same(tmp_path):
    records = [("a", "b", "yes"), ("c", "", "-"), ("d", "e", "no")]
    keys = ("sentence1", "sentence2", "gold_label")
    lines = [json.dumps(dict(zip(keys, record))) for record in records]
    examples = read_examples(write(tmp_path / "dev.jsonl", *lines))
    assert rows(examples) == [("a", "b", "yes"), ("d", "e", "no")]
    assert examples.left_out == 1
    numbered = write(
        tmp_path / "numbered.jsonl",
        '{"t": "a", "n": 10}',
        '{"t": "b", "n": -1}',
        '{"t": "c", "n": 9}',
    )
    examples = read_examples(numbered, columns=("t", "n"))
    # In the order of numbers, which that of their names is not.
    assert examples.names == ("9", "10")
    assert examples.labels.tolist() == [1, 0]


def test_quoted_table(tmp_path):
    path = write(tmp_path / "x.csv", "n,text", '1,"a, ""b""', 'c"', "0,d")
    examples = read_examples(path, columns=("text", "n"), labels=("no", "yes"))
    assert rows(examples) == [('a, "b"\nc', "yes"), ("d", "no")]


def test_table_without_a_header(tmp_path):
    path = write(
        tmp_path / "cola.tsv", "gj04\t1\t\tIt is.", "gj04\t0\t*\tIs it"
    )
    examples = read_examples(path, columns=("3", "1"))
    assert rows(examples) == [("It is.", "1"), ("Is it", "0")]
    texts = [row.texts for row in read_rows(path, ("3",), labelled=False)]
    assert texts == [["It is."], ["Is it"]]


def test_labels_go_by_their_names(tmp_path):
    """Numbers in one file and names in another, as of SNLI and MNLI."""
    header = "premise\thypothesis\tlabel"
    path = write(tmp_path / "x.tsv", header, "a\tb\t2", "c\td\t0")
    named = read_examples(path, labels=NLI)
    assert rows(named) == [("a", "b", NLI[2]), ("c", "d", NLI[0])]
    # Which is which, nobody said.
    with pytest.raises(ValueError, match="x.tsv:2: .* entailment.* '2'"):
        read_examples(path, labels=NLI, numbered=False)
    other = write(tmp_path / "y.tsv", header, "a\tb\t0", "c\td\t3")
    with pytest.raises(ValueError, match=r"y.tsv:3: .*, 0, 1, 2 .*'3'"):
        read_examples(other, labels=NLI)
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
        ("x.tsv", ["a\tb", "1\t2"], (), "x.tsv:2: .* sentence1 .*: a b"),
        ("x.tsv", ["text\tlabel", "a"], (), "x.tsv:2: must have 2 .*ved 1"),
        ("x.tsv", ["text\tlabel", "a\t"], (), "x.tsv:2: the label .* ''"),
        ("x.tsv", ["text\tlabel", "a\t-"], (), "x.tsv must hold .*: 1 without"),
        ("x.tsv", ["a\tb"], ("a",), "`columns` must be those .* Received: a"),
        ("x.tsv", ["a\tb"], ("0", "2"), "x.tsv:1: .* columns 0 2. "),
        ("x.md", ["a"], (), r"x.md: must end in .tsv, .txt, .csv or .jsonl"),
        ("x.csv", ["text,label", '"a'], (), "x.csv:2: unexpected end of data"),
        (
            "x.jsonl",
            ['{"text": "a", "label": 1.0}'],
            (),
            "x.jsonl:1: .* or an integer. Received: 1.0, float",
        ),
        ("x.tsv", ["text\tlabel", "a\udcff\t0"], (), "x.tsv is not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, name, lines, columns, message):
    with pytest.raises(ValueError, match=message):
        read_examples(write(tmp_path / name, *lines), columns)


@pytest.mark.filterwarnings("ignore:label.. is deprecated:DeprecationWarning")
def test_tensorflow_datasets(tmp_path):
    tfds.core.add_data_dir(tmp_path)
    for name, columns, label in (
        (
            "inference",
            {"premise": ["a", "é", "c"], "hypothesis": ["d", "e", "f"]},
            [2, 0, -1],
        ),
        ("titled", {"text": [" red", ""], "title": ["one", ""]}, [0, 1]),
        ("pairs", {"id": ["a"], "query": ["one"], "positive": ["red"]}, [0]),
    ):
        text = tfds.features.Text()
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.2.3",
            data_dir=tmp_path,
            split_datasets={
                "train": tf.data.Dataset.from_tensor_slices(
                    {**columns, "label": label}
                )
            },
            features=tfds.features.FeaturesDict(
                {
                    **{column: text for column in columns},
                    "label": tfds.features.ClassLabel(names=NLI),
                }
            ),
            disable_shuffling=True,
        )
    # As `--data` hands it over.
    examples = read_examples(pathlib.Path("tfds:inference"))
    expected = [("a", "d", NLI[2]), ("é", "e", NLI[0])]
    assert rows(examples) == expected
    assert examples.left_out == 1
    part = read_examples("tfds:inference:train[1:]", labels=NLI)
    assert rows(part) == expected[1:]
    said = []
    assert read_texts("tfds:titled", say=said.append) == ["one  red"]
    assert said == ["tfds:titled: 1 left out as blank"]
    assert read_jsonl("tfds:pairs") == [("a", "one", "red", ())]
    for read, name, message in (
        (read_examples, "pairs", r"pairs\[0\]: must have the columns"),
        (
            read_texts,
            "pairs",
            "tfds:pairs:1.2.3:train: must .* text, title",
        ),
        (read_jsonl, "titled", r"titled\[0\]: a line must have 'query'"),
        (read_questions, "pairs", r"pairs\[0\]: must have SQuAD's features"),
    ):
        with pytest.raises(ValueError, match=message):
            read(f"tfds:{name}")


def test_a_text_a_line(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("\n red \n\t\n中 é\r\nlast".encode())
    assert read_texts(path) == ["red", "中 é", "last"]
    assert read_texts(path, 2) == ["red", "中 é"]


def test_texts_of_json_lines(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [
        {"_id": "a", "title": "one", "text": "red"},
        {"title": "", "text": " blue\n"},
        {"text": " "},
        {"title": "two", "text": ""},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert read_texts(path) == ["one red", "blue", "two"]
    # What comes later is not looked at.
    with open(path, "a") as lines:
        lines.write('{"title": "three"}\n')
    assert read_texts(path, 3) == ["one red", "blue", "two"]
    with pytest.raises(ValueError, match=r"corpus.jsonl:5: 'text'"):
        read_texts(path)


def test_what_is_no_text_is_named(tmp_path):
    path = tmp_path / "a.txt"
    for content, message in (
        (b" \n\n", "a.txt has no text in it"),
        (b"red\n\xe9\n", "a.txt is not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_texts(path)
