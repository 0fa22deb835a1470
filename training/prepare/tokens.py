"""Documents of text to documents of token ids."""

import collections
import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence

import tensorflow as tf

from keras_fixedhead import FixedHeadTokenizer
from training.corpus.tokenized import Document
from training.prepare.documents import (
    EMPTY_LINES,
    LINES,
    SHORT,
    UNKNOWN,
    WORDS,
)
from training.prepare.workers import THREADS

_BATCH_BYTES = 2**18


class DocumentTokenizer:
    """Turns documents into ids with the tokenizer that models have.

    Args:
        vocabulary: The tokens, by their ids.
        lowercase: Whether to lower-case and to remove accents.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool):
        tokenizer = FixedHeadTokenizer(list(vocabulary), lowercase=lowercase)
        self._unknown = tokenizer.unk_token_id
        self._tokenize = tf.function(
            tokenizer.tokenize_in_graph,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def __call__(
        self,
        documents: Iterable[bytes],
        counts: collections.Counter,
        left_out: collections.Counter,
    ) -> Iterator[Document]:
        """Yields the tokenized documents, in order.

        Args:
            documents: As `training.prepare.documents` describes them. All of
                them are read before the first comes out.
            counts: Takes the numbers of lines, of words between white space
                and of unknown tokens.
            left_out: Takes the numbers of lines without tokens, and of
                documents without two of them, which are left out.
        """
        batches = list(_batch(documents))
        with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
            for batch, (token_ids, line_lengths) in zip(
                batches, threads.map(self._tokenize_lines, batches)
            ):
                counts[UNKNOWN] += int((token_ids == self._unknown).sum())
                left_out[EMPTY_LINES] += int((line_lengths == 0).sum())
                token = line = 0
                for lines in batch:
                    lengths = line_lengths[line : line + len(lines)]
                    line += len(lines)
                    tokens = token_ids[token : token + lengths.sum()]
                    token += len(tokens)
                    if len(tokens) < 2:
                        left_out[SHORT] += 1
                        continue
                    counts[WORDS] += sum(
                        len(text.decode().split())
                        for text, length in zip(lines, lengths)
                        if length
                    )
                    lengths = lengths[lengths > 0]
                    counts[LINES] += len(lengths)
                    yield Document(tokens, lengths)

    def _tokenize_lines(self, batch):
        lines = [line for document in batch for line in document]
        ids = self._tokenize(tf.constant(lines))
        return ids.flat_values.numpy(), ids.row_lengths().numpy()


def _batch(documents):
    """Yields lists of documents as lists of lines."""
    batch, size = [], 0
    for document in documents:
        batch.append(document.split(b"\n"))
        size += len(document)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
