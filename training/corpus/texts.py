"""Texts by themselves, one a line, and as inputs of an encoder.

Shape letters: B batch, T sequence length.
"""

import itertools
import os
import pathlib
from collections.abc import Callable

import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedderPreprocessor, beir


def read_texts(
    path: str | os.PathLike,
    most: int | None = None,
    say: Callable[[str], None] | None = None,
) -> list[str]:
    """Reads texts that are not empty.

    Args:
        path: A file with a text a line, or a `.jsonl` file with `text` and
            perhaps `title`, such as the corpus of a BEIR folder.
        most: The most to read; `None` reads all.
        say: Called with a line on the blank texts, if there are any.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not UTF-8, a line is not as described, or there are
            no texts.
    """
    path = pathlib.Path(path)
    blank = 0

    def texts_left():
        nonlocal blank
        for text in _texts(path):
            if text:
                yield text
            else:
                blank += 1

    texts = list(itertools.islice(texts_left(), most))
    if not texts:
        raise ValueError(f"{path} has no text in it")
    if blank and say is not None:
        say(f"{path}: {blank:,} left out as blank")
    return texts


def tokenized(
    preprocessor: FixedHeadTextEmbedderPreprocessor,
    text: tf.Tensor,
    prompt: str | None,
    sequence_length: int,
    fixed_size: bool,
) -> dict[str, tf.Tensor]:
    """Texts as inputs of an encoder, by operations of TensorFlow's graphs.

    Args:
        preprocessor: Tokenizes.
        text: String tensor `[B]`.
        prompt: The name of the prompt to put before each, or `None`.
        sequence_length: The most tokens of a text.
        fixed_size: Whether T is `sequence_length`, not that of the longest:
            one static shape, which XLA compiles once.

    Returns:
        A dictionary of int32 tensors `[B, T]`.
    """
    features = preprocessor.pad_to_longest(
        text, prompt=prompt, sequence_length=sequence_length
    )
    if not fixed_size:
        return features
    return of_length(
        features, sequence_length, preprocessor.tokenizer.pad_token_id
    )


def of_length(
    features: dict[str, tf.Tensor], sequence_length: int, pad_token_id: int
) -> dict[str, tf.Tensor]:
    """Inputs of an encoder, padded to a static shape.

    Args:
        features: int32 tensors `[B, T]`: `token_ids`, `padding_mask` and
            `segment_ids`.
        sequence_length: Integer, at least T.
        pad_token_id: Integer, fills up `token_ids`.

    Returns:
        A dictionary of int32 tensors `[B, sequence_length]`.
    """
    missing = sequence_length - tf.shape(features["token_ids"])[1]
    fill = {"token_ids": pad_token_id}
    return {
        name: tf.ensure_shape(
            tf.pad(
                values,
                [[0, 0], [0, missing]],
                constant_values=fill.get(name, 0),
            ),
            [None, sequence_length],
        )
        for name, values in features.items()
    }


def _texts(path):
    if path.suffix == ".jsonl":
        for where, record in beir.read_records(path):
            text = beir.text(record, "text", where)
            if "title" in record:
                text = f"{beir.text(record, 'title', where)} {text}"
            yield text.strip()
        return
    with open(path, encoding="utf-8") as lines:
        try:
            for line in lines:
                yield line.strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8: {error}") from error
