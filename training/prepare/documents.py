"""Documents out of text: streamed, cleaned and cut to sizes that fit.

A document is UTF-8 bytes: lines with a newline between, one paragraph each and
none blank.
"""

import collections
import io
import itertools
import typing
from collections.abc import Iterable, Iterator

# Longer lines and documents are cut: these are longer than any paragraph and
# most books, but small beside the memory.
MAX_LINE_BYTES = 2**20
MAX_DOCUMENT_BYTES = 2**22

# Names of counts, most of them in the manifest: of what was read,
BYTES = "bytes"
EMPTY = "empty documents"
BAD_UTF8 = "lines with bytes that are not UTF-8, removed"
LONG_LINES = "over-long lines, cut"
LONG_JSON = "over-long lines of JSON"
LONG_DOCUMENTS = "over-long documents, cut"
# and of what was tokenized.
LINES = "lines"
WORDS = "words"
UNKNOWN = "unknown tokens"
EMPTY_LINES = "lines without a token"
SHORT = "documents of fewer than 2 tokens"

Counts = collections.Counter[str]


def read_text(
    stream: typing.BinaryIO, counts: Counts, lines_are_documents: bool = False
) -> Iterator[bytes]:
    """Yields the documents of a stream of text, a paragraph a line.

    Blank lines divide documents, or each line is one. Strips lines, and drops
    bytes that are not UTF-8, like BERT.
    """
    lines = _read_lines(stream, counts)
    if lines_are_documents:
        return _or_empty(filter(None, lines), counts)
    return _or_empty(_group(lines, counts), counts)


def read_one(text: bytes, counts: Counts) -> Iterator[bytes]:
    """Yields a text as one document, or as several if it is too long."""
    lines = filter(None, _read_lines(io.BytesIO(text), counts))
    return _or_empty(_group(lines, counts), counts)


def _or_empty(documents, counts):
    first = next(documents, None)
    if first is None:
        counts[EMPTY] += 1
    else:
        yield first
        yield from documents


def _read_lines(stream, counts):
    """Yields stripped lines, in pieces of at most `MAX_LINE_BYTES`."""
    rest = b""
    while line := rest + stream.readline(MAX_LINE_BYTES + 1 - len(rest)):
        whole = len(line) <= MAX_LINE_BYTES or line.endswith(b"\n")
        end = len(line) if whole else _end_of_piece(line)
        continues, (line, rest) = bool(rest), (line[:end], line[end:])
        counts[LONG_LINES] += bool(rest) and not continues
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode(errors="ignore")
            counts[BAD_UTF8] += 1
        line = text.strip().encode()
        # A piece of a long line that is white space is not a blank line.
        if line or not (rest or continues):
            yield line


def _end_of_piece(line: bytes) -> int:
    """Where to cut a long line: between words, or else characters."""
    space = line.rfind(b" ")
    if space > 0:
        return space
    end = MAX_LINE_BYTES
    while end > MAX_LINE_BYTES - 4 and line[end] & 0b1100_0000 == 0b1000_0000:
        end -= 1
    return end


def _group(lines: Iterable[bytes], counts: Counts) -> Iterator[bytes]:
    """Yields the text between blank lines, cut where it is too long."""
    paragraphs: list[bytes] = []
    size, cut = 0, False
    for line in itertools.chain(lines, [b""]):
        full = size + len(line) > MAX_DOCUMENT_BYTES
        if paragraphs and (full or not line):
            yield b"\n".join(paragraphs)
            paragraphs, size = [], 0
            counts[LONG_DOCUMENTS] += bool(line) and not cut
            cut = bool(line)
        if line:
            paragraphs.append(line)
            size += len(line) + 1
