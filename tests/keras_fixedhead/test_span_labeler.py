"""Answers in contexts: the head in NumPy; windows beside BERT's run_squad."""

import collections
import random

import numpy as np
import pytest
from keras import ops

from keras_fixedhead import (
    FixedHeadSpanLabeler,
    FixedHeadSpanLabelerPreprocessor,
    FixedHeadTokenizer,
)
from keras_fixedhead.context_windows import Answer, decode
from tests import tiny_models

WORDS = ["attention", "head", "heads", "a", "bc", "Def", "é", ",", "x.", "U.S."]
Result = collections.namedtuple("Result", "unique_id start_logits end_logits")

pytestmark = pytest.mark.any_backend


def test_equals_numpy(make_task, inputs):
    model = make_task(
        FixedHeadSpanLabeler, preprocessor={"max_question_length": 2}
    )
    tiny_models.add_noise(model)
    x = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    kernel, bias = model.span_dense.get_weights()
    real = inputs["padding_mask"] == 1
    for outputs in (
        model(inputs),
        model.label_packed(tiny_models.tensors(inputs)),
    ):
        assert list(outputs) == ["start", "end"]
        logits = np.stack([*tiny_models.as_numpy(outputs).values()], axis=-1)
        expected = x[real] @ kernel + bias
        np.testing.assert_allclose(logits[real], expected, atol=1e-5)
        assert (logits[~real] == -1e9).all()


def test_lengths_of_another_tasks_preset(make_embedder, tmp_path):
    """As long as the encoder allows, in BERT's proportions."""
    make_embedder().save_to_preset(str(tmp_path))
    preprocessor = FixedHeadSpanLabeler.from_preset(str(tmp_path)).preprocessor
    assert preprocessor.sequence_length == 17
    assert preprocessor.document_stride == 5
    assert preprocessor.max_question_length == 2


@pytest.fixture
def make_preprocessor(vocabulary):
    def make(**arguments):
        return FixedHeadSpanLabelerPreprocessor(
            FixedHeadTokenizer(vocabulary),
            **{
                "sequence_length": 23,
                "document_stride": 7,
                "max_question_length": 5,
                **arguments,
            },
        )

    return make


def phrase(draw, most):
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


class Vocabulary:
    """A tokenizer as tf-models-official calls it."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def tokenize(self, text):
        return [self.tokenizer.id_to_token(i) for i in self.tokenizer(text)]

    def convert_tokens_to_ids(self, tokens):
        names = {"[CLS]": "start_token_id", "[SEP]": "end_token_id"}
        return [
            getattr(self.tokenizer, names[token])
            if token in names
            else self.tokenizer.token_to_id(token)
            for token in tokens
        ]


@pytest.mark.parametrize("stride", [1, 3, 7, 100])
def test_windows_and_answers_equal_run_squad_s(make_preprocessor, stride):
    from official.nlp.data import squad_lib

    preprocessor = make_preprocessor(document_stride=stride)
    draw, rng = random.Random(stride), np.random.default_rng(stride)
    windows_seen = set()
    for _ in range(11):
        question, context = phrase(draw, 5), phrase(draw, 23)
        example = squad_lib.SquadExample("q", question, context.split())
        features = []
        squad_lib.convert_examples_to_features(
            [example],
            Vocabulary(preprocessor.tokenizer),
            max_seq_length=23,
            doc_stride=stride,
            max_query_length=5,
            is_training=False,
            output_fn=lambda feature, is_padding, to=features: to.append(
                feature
            ),
            batch_size=1,
        )
        windows = preprocessor.windows(question, context)
        inputs = preprocessor.pad(windows)
        windows_seen.add(len(windows))
        for number, (feature, row) in enumerate(
            zip(features, windows, strict=True)
        ):
            assert inputs["token_ids"][number].tolist() == feature.input_ids
            assert inputs["padding_mask"][number].tolist() == feature.input_mask
            assert inputs["segment_ids"][number].tolist() == feature.segment_ids
            first, end = row.token_range
            assert feature.token_is_max_context == {
                row.context_start + i: windows.max_context[first + i] == number
                for i in range(end - first)
            }
        starts, ends = rng.normal(size=(2, len(windows), 23))
        # More than there are tokens: it tries the best of those only.
        _, theirs, _ = squad_lib.postprocess_output(
            [example],
            features,
            [
                Result(feature.unique_id, start.tolist(), end.tolist())
                for feature, start, end in zip(features, starts, ends)
            ],
            n_best_size=29,
            max_answer_length=3,
            do_lower_case=True,
        )
        ours = decode(starts, ends, windows, n_best=29, max_answer_length=3)
        assert [(answer.text, answer.score) for answer in ours] == [
            (entry["text"], entry["start_logit"] + entry["end_logit"])
            for entry in theirs["q"]
        ]
        np.testing.assert_allclose(
            [answer.probability for answer in ours],
            [entry["probability"] for entry in theirs["q"]],
        )
        for answer in ours:
            assert context[answer.start : answer.end] == answer.text
    assert len(windows_seen) > 2


def test_max_context_of_long_windows(make_preprocessor):
    """Where a last window is much shorter, its length counts, too."""
    from official.nlp.data import squad_lib

    span = collections.namedtuple("DocSpan", "start length")
    preprocessor = make_preprocessor(sequence_length=331, document_stride=211)
    for length in (331, 347, 401, 523):
        windows = preprocessor.windows("a", "b " * length)
        spans = [
            span(first, end - first)
            for first, end in (row.token_range for row in windows)
        ]
        assert len(spans) > 1
        for token, number in enumerate(windows.max_context):
            assert squad_lib._check_is_max_context(spans, number, token)


def test_the_question_is_cut(make_preprocessor):
    preprocessor = make_preprocessor()
    windows = preprocessor.windows("a b c d e f g", "head")
    assert windows.question_tokens_cut == 2
    assert preprocessor.windows("a b c d e", "head").question_tokens_cut == 0
    [window] = windows
    assert (
        window.token_ids
        == preprocessor.windows("a b c d e", "head")[0].token_ids
    )
    assert window.context_start == 7 and window.token_range == (0, 1)


@pytest.mark.parametrize("context", ["", " \n", "\u200b"])
def test_a_context_without_tokens(make_preprocessor, context):
    windows = make_preprocessor().windows("a", context)
    [window] = windows
    assert window.token_range == (0, 0) and window.context_start == 3
    assert windows.max_context.tolist() == []
    logits = np.zeros((1, 23))
    assert decode(logits, logits, windows) == [Answer("", 0.0, 0, 0, 1.0)]


def test_spans_and_texts(make_preprocessor):
    context = "  Heads, (bc) café\u0301 Attention"
    # head ##s , ( b ##c ) c ##a ##f ##e attention
    windows = make_preprocessor().windows("a", context)
    for text, span, again in [
        ("Heads", (0, 1), "Heads"),
        ("ead", (0, 0), "Head"),
        ("s", (1, 1), "s"),
        ("bc", (4, 5), "bc"),
        ("(bc) ", (3, 6), "(bc)"),
        ("Attention", (11, 11), "Attention"),
        ("café\u0301", (7, 10), "café\u0301"),
    ]:
        assert windows.span_of(context.index(text), text) == span
        assert windows.text_of(*span) == again
    assert windows.span_of(0, " ") is windows.span_of(3, "") is None
    for start in (1, -2, 90):
        with pytest.raises(ValueError, match=f"at {start}, .*'Heads'"):
            windows.span_of(start, "Heads")


def test_decode_is_of_the_context(make_preprocessor):
    """The highest logits are where no answer can be."""
    preprocessor = make_preprocessor()
    windows = preprocessor.windows("a b", "c d e")
    starts, ends = np.zeros((2, 1, 23))
    # [CLS] a b [SEP] c d e [SEP]: not the question, not the end, no padding.
    starts[0, [0, 1, 7, 9]] = ends[0, [2, 3, 7, 11]] = 9.0
    starts[0, 6], ends[0, 4] = 3.0, 4.0  # the end before the start
    found = decode(starts, ends, windows)
    assert {answer.text for answer in found} == {
        *("c", "d", "e", "c d", "d e", "c d e")
    }
    assert found[0][:4] == ("c", 4.0, 0, 1)
    assert found[1][:4] == ("e", 3.0, 4, 5)
    assert sum(answer.probability for answer in found) == pytest.approx(1.0)
    assert found[0].probability / found[1].probability == pytest.approx(np.e)
    assert [a.text for a in decode(starts, ends, windows, n_best=2)] == [
        *("c", "e")
    ]
    short = decode(starts, ends, windows, max_answer_length=1)
    assert [answer.text for answer in short] == ["c", "e", "d"]


def test_huge_logits(make_preprocessor):
    windows = make_preprocessor().windows("a b", "c d")
    found = decode(np.full((1, 7), 1e4), np.full((1, 7), -3e4), windows)
    assert [answer.probability for answer in found] == [1 / 3] * 3


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 23), {"n_best": 0}, "`n_best` must be a positive .* n_best=0"),
        ((2, 23), {}, r"`start_logits`.*\[1, T\].*\(2, 23\)"),
        ((1, 6), {}, r"at least 7.*\(1, 6\)"),
    ],
)
def test_errors(make_preprocessor, shape, options, message):
    logits = np.zeros(shape)
    windows = make_preprocessor().windows("a b", "c d")
    with pytest.raises(ValueError, match=message):
        decode(logits, logits, windows, **options)
