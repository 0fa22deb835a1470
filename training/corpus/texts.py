"""Single texts: read from files, and tokenized as inputs of an encoder.

Shape letters: B batch, T sequence length.
"""

import os
import pathlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from keras_fixedhead import FixedHeadTextEmbedderPreprocessor, beir


def read_texts(
    path: str | os.PathLike,
    most: int | None = None,
    say: Callable[[str], None] | None = None,
) -> list[str]:
    """Reads the texts that are not blank, at most `most`.

    The file has a text a line, or is a `.jsonl` file with `text` and perhaps
    `title`, such as a BEIR corpus. `say` is told how many texts were blank.
    """
    path = pathlib.Path(path)
    texts, blank = [], 0
    for text in _texts(path):
        if not text:
            blank += 1
            continue
        texts.append(text)
        if len(texts) == most:
            break
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
    """Tokenizes a string tensor `[B]` into int32 tensors `[B, T]`, in graphs.

    `prompt` names the prompt to put before each text. With `fixed_size`, T is
    `sequence_length`: a static shape, which XLA compiles once. Otherwise T is
    the length of the longest text.
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
    """Pads int32 tensors `[B, T]` to the static `[B, sequence_length]`.

    `pad_token_id` fills `token_ids`; zeros fill the other features.
    """
    missing = sequence_length - tf.shape(features["token_ids"])[1]
    padded = {}
    for name, values in features.items():
        fill = pad_token_id if name == "token_ids" else 0
        values = tf.pad(values, [[0, 0], [0, missing]], constant_values=fill)
        padded[name] = tf.ensure_shape(values, [None, sequence_length])
    return padded


def _texts(path: pathlib.Path) -> Iterator[str]:
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
