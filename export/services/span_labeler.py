"""A span labeler, served: questions answered from contexts.

Shape letters: B batch, T padded length.
"""

import dataclasses

import numpy as np
import tensorflow as tf

import keras_fixedhead
from export import session
from export.files import golden
from export.services import context_graph, service
from keras_fixedhead import context_windows

# The last context has several windows, and no sentence twice in a row.
_WORDS = " ".join(golden.TEXTS[:-1]).split()
_CONTEXTS = (*golden.TEXTS[:-1], " ".join(_WORDS + _WORDS[::-1]))
_QUESTIONS = (*golden.TEXTS[1:], golden.TEXTS[4])


@service.serves(keras_fixedhead.FixedHeadSpanLabeler)
def serve(
    labeler: keras_fixedhead.FixedHeadSpanLabeler,
    preprocessor: keras_fixedhead.FixedHeadSpanLabelerPreprocessor,
) -> service.Service:
    """Serves the answer to `question` in `context`, string `[B]` each.

    `serving_default` answers `answer`, string `[B]`; `score`, float32 `[B]`;
    `start` and `end`, int32 `[B]`, see `context_graph.answers`.
    `from_token_ids` answers the logits `start` and `end`, float32 `[B, T]`.
    """

    def answer(questions, contexts):
        found = context_graph.windows(preprocessor, questions, contexts)
        return context_graph.answers(labeler.label_packed, found, contexts)

    def padded(inputs):
        return service.Answers(service.to_numpy(labeler(inputs)))

    def expected(questions, contexts):
        rows = [
            _expected(padded, preprocessor, question, context)
            for question, context in zip(questions, contexts, strict=True)
        ]
        texts, scores, starts, ends, margins = zip(*rows, strict=True)
        outputs = {
            "answer": np.array(texts),
            "score": np.array(scores, np.float32),
            "start": np.array(starts, np.int32),
            "end": np.array(ends, np.int32),
        }
        return service.Answers(outputs, np.array(margins))

    def tokenize(texts):
        text = tf.constant(texts)
        inputs = context_graph.windows(preprocessor, text, text).inputs
        # As many rows as texts, a batch size that the server runs.
        return {name: ids[: len(texts)] for name, ids in inputs.items()}

    def golden_ids():
        found = preprocessor.windows(_QUESTIONS[-1], _CONTEXTS[-1])
        return preprocessor.pad(found[:8])

    asked = {"question": _QUESTIONS, "context": _CONTEXTS}
    signature = service.TextSignature(asked, answer, expected)
    return service.Service(
        model=labeler,
        preprocessor=preprocessor,
        texts={session.DEFAULT_SIGNATURE: signature},
        golden_ids=golden_ids,
        packed=labeler.label_packed,
        padded=padded,
        tokenize=tokenize,
        described={
            "document_stride": preprocessor.document_stride,
            "max_question_length": preprocessor.max_question_length,
            "max_windows": context_graph.MAX_WINDOWS,
            "max_answer_length": context_graph.MAX_ANSWER_LENGTH,
        },
    )


def _expected(padded, preprocessor, question, context):
    """The Keras model's answer to one question: text, score, start and end in
    bytes, and how far the score is above that of other words."""
    windows = preprocessor.windows(question, context)
    rows = windows.rows[: context_graph.MAX_WINDOWS]
    windows = dataclasses.replace(windows, rows=rows)
    if not windows.starts:
        return "", 0.0, 0, 0, np.inf
    logits = padded(preprocessor.pad(windows)).outputs
    start, end = (logits[name].astype(float) for name in ("start", "end"))
    split = context_graph.words(tf.constant([context]), preprocessor.tokenizer)
    _, begins, finishes = (x[0].numpy() for x in split)
    before = np.cumsum([0, *(len(letter.encode()) for letter in context)])
    # [C], the word of each token
    word = np.searchsorted(begins, before[windows.starts], side="right") - 1
    scores, spans = context_windows.span_scores(
        start, end, windows, context_graph.MAX_ANSWER_LENGTH
    )
    spans = word[spans]
    best = scores.argmax()
    first, last = spans[best]
    others = scores[(spans != spans[best]).any(axis=1)]
    begin, finish = int(begins[first]), int(finishes[last])
    return (
        context.encode()[begin:finish].decode(),
        scores[best],
        begin,
        finish,
        scores[best] - others.max(initial=-np.inf),
    )
