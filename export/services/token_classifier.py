"""A token classifier, served: a label for each word of a text.

Shape letters: B batch, T padded length, C classes, W most words of a text.
"""

import itertools

import numpy as np
import tensorflow as tf
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden
from export.services import context_graph, service


@service.serves(keras_fixedhead.FixedHeadTokenClassifier)
def serve(
    classifier: keras_fixedhead.FixedHeadTokenClassifier,
    preprocessor: keras_fixedhead.FixedHeadTokenClassifierPreprocessor,
) -> service.Service:
    """Serves the labels of the words of `text`, string `[B]`.

    `serving_default` answers `label`, string `[B, W]`; `probability`, float32
    `[B, W]`; `start` and `end`, int32 `[B, W]`, the characters of the text
    before the word and up to its end. Shorter rows end in `""` and zeros.
    Words are divided at spaces and punctuation; those beyond `sequence_length`
    tokens get no label. `from_token_ids` answers `probabilities`, float32
    `[B, T, C]`, 0 at padding.
    """
    names = classifier.labels or list(map(str, range(classifier.num_classes)))
    tokenizer, room = preprocessor.tokenizer, preprocessor.room(None, 1)

    def at_real_tokens(logits, inputs):
        real = ops.cast(inputs["padding_mask"], logits.dtype)
        return {"probabilities": ops.softmax(logits) * real[:, :, None]}

    def packed(inputs):
        return at_real_tokens(classifier.classify_packed(inputs), inputs)

    def padded(inputs):
        outputs = at_real_tokens(classifier(inputs), inputs)
        return service.Answers(service.to_numpy(outputs))

    def answer(texts):
        words, starts, ends = context_graph.words(texts, tokenizer)
        pieces = tokenizer.tokenize_in_graph(words.flat_values)
        ids = words.with_flat_values(pieces).merge_dims(-2, -1)[:, :room]
        inputs = preprocessor.pack_in_graph([tf.cast(ids, tf.int32)])
        # [CLS] is in the first place.
        counts = words.with_flat_values(pieces.row_lengths())
        first = 1 + tf.cumsum(counts.to_tensor(), axis=1, exclusive=True)
        first = tf.RaggedTensor.from_tensor(first, words.row_lengths())
        labelled = (counts > 0) & (first <= room)
        first, starts, ends = (
            tf.ragged.boolean_mask(places, labelled)
            for places in (first, starts, ends)
        )
        probabilities = tf.gather(
            packed(inputs)["probabilities"], first.to_tensor(), batch_dims=1
        )  # [B, W, C]
        best = tf.argmax(probabilities, axis=-1)
        there = tf.sequence_mask(first.row_lengths())
        highest = tf.reduce_max(probabilities, axis=-1)
        return {
            "label": tf.where(there, tf.gather(tf.constant(names), best), ""),
            "probability": tf.where(there, highest, 0.0),
            "start": _characters(texts, starts).to_tensor(),
            "end": _characters(texts, ends).to_tensor(),
        }

    def expected(texts):
        inputs = golden.trimmed(service.to_numpy(preprocessor(texts)))
        found = padded(inputs).outputs["probabilities"]
        split = context_graph.words(texts, tokenizer)
        rows = [
            _expected(text, row, words, tokenizer, room)
            for text, row, *words in zip(texts, found, *split)
        ]
        found, starts, ends = zip(*rows)
        labels = [[names[i] for i in x.argmax(axis=-1)] for x in found]
        ordered = [np.sort(x, axis=-1) for x in found]
        outputs = {
            "label": _padded(labels, "", str),
            "probability": _padded([x[:, -1] for x in ordered], 0, np.float32),
            "start": _padded(starts, 0, np.int32),
            "end": _padded(ends, 0, np.int32),
        }
        margins = [(x[:, -1] - x[:, -2]).min(initial=np.inf) for x in ordered]
        return service.Answers(outputs, np.array(margins))

    asked = {"text": golden.TEXTS}
    signature = service.TextSignature(asked, answer, expected)
    return service.Service(
        model=classifier,
        preprocessor=preprocessor,
        texts={session.DEFAULT_SIGNATURE: signature},
        golden_ids=lambda: service.to_numpy(preprocessor(list(golden.TEXTS))),
        packed=packed,
        padded=padded,
        tokenize=preprocessor.pad_to_longest,
        described={
            "num_classes": classifier.num_classes,
            "labels": classifier.labels,
        },
    )


def _padded(rows, value, dtype):
    columns = list(itertools.zip_longest(*rows, fillvalue=value))
    return np.array(columns, dtype).reshape(-1, len(rows)).T


def _characters(texts, places):
    """Converts places in texts, `[B, None]`, from bytes to characters."""
    _, begins = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    # As if the texts were one: the bytes before each character and place.
    before = tf.cumsum(tf.strings.length(texts), exclusive=True)
    before = tf.cast(before, tf.int64)
    row = places.value_rowids()
    characters = begins.flat_values + tf.gather(before, begins.value_rowids())
    wanted = places.flat_values + tf.gather(before, row)
    found = tf.searchsorted(characters, wanted, out_type=tf.int64)
    found -= tf.gather(begins.row_starts(), row)
    return places.with_flat_values(tf.cast(found, tf.int32))


def _expected(text, probabilities, words, tokenizer, room):
    """The Keras model's answers, `[words, C]`, at the first token of each word,
    and the characters where the words start and end.

    Takes probabilities, `[T, C]`, and the result of `context_graph.words`.
    """
    words, *places = (x.numpy().tolist() for x in words)
    content = text.encode()
    starts, ends = (
        [len(content[:place].decode()) for place in column] for column in places
    )
    pieces = tokenizer([word.decode() for word in words]) if words else []
    first, kept = 1, []
    for number, ids in enumerate(pieces):
        if len(ids) and first <= room:
            kept.append((first, starts[number], ends[number]))
        first += len(ids)
    places, starts, ends = zip(*kept) if kept else ((), (), ())
    return probabilities[list(places)], starts, ends
