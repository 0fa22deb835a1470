"""Documents read from files: streamed, cleaned and cut to sizes that fit.

A document is UTF-8 bytes: lines with a newline between, one paragraph each and
none blank.
"""

import codecs
import collections
import contextlib
import dataclasses
import gzip
import io
import itertools
import json
import pathlib
import reprlib
import typing
import zlib
from collections.abc import Iterable, Iterator

# Longer lines and documents are cut: these are longer than any paragraph and
# most books, but small beside the memory.
MAX_LINE_BYTES = 2**20
MAX_DOCUMENT_BYTES = 2**22
# A longer line of JSON cannot be cut; it is left out.
MAX_JSON_BYTES = 2**26

# What divides documents.
BLANK_LINES = "blank lines"
EACH_LINE = "each line"

# Names of counts in the manifest: of what was read,
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


@dataclasses.dataclass
class Tally:
    """Counts of what was left out or repaired, and bytes read of sources."""

    counts: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )
    bytes_read: int = 0


def read_file(
    path: pathlib.Path, tally: Tally, *, lines_are_documents: bool = False
) -> Iterator[bytes]:
    """Yields the documents of a file, and tallies what it meets.

    `.jsonl` has a document a line, an object with the string `text`. Any other
    file is text, a paragraph a line, with blank lines between documents (or a
    document a line). Either may be compressed, with `.gz` after the name.
    """
    before = tally.bytes_read
    with open(path, "rb") as file, _decompressed(path, file) as stream:
        if stream.peek(3).startswith(codecs.BOM_UTF8):
            stream.read(3)
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            documents = _read_jsonl(path, stream, tally.counts)
        else:
            documents = read_text(
                stream,
                tally.counts,
                divide=EACH_LINE if lines_are_documents else BLANK_LINES,
            )
        for document in documents:
            tally.bytes_read = before + file.tell()
            yield document
        tally.bytes_read = before + file.tell()


def read_text(
    stream: typing.BinaryIO,
    counts: collections.Counter[str],
    *,
    divide: str | None = BLANK_LINES,
) -> Iterator[bytes]:
    """Yields the documents of a stream of text, a paragraph a line.

    Strips white space around lines (line ends of any system, form feeds), and
    drops bytes that are not UTF-8, like BERT. `divide` is `BLANK_LINES`,
    `EACH_LINE` (a long line is cut into several documents), or `None` for one
    document.
    """
    lines = _read_lines(stream, counts)
    if divide != BLANK_LINES:
        lines = filter(None, lines)
    documents = lines if divide == EACH_LINE else _group(lines, counts)
    first = next(documents, None)
    if first is None:
        counts[EMPTY] += 1
    else:
        yield first
        yield from documents


def _read_jsonl(path, stream, counts):
    lines = iter(lambda: stream.readline(MAX_JSON_BYTES + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_JSON_BYTES:
            counts[LONG_JSON] += 1
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_JSON_BYTES)
            continue
        if not line.strip():
            continue
        try:
            # Bytes that are not UTF-8, and surrogates that JSON escapes, end
            # up as bytes that are not UTF-8, which `read_text` drops.
            record = json.loads(line.decode(errors="surrogateescape"))
            text = record["text"].encode(errors="surrogatepass")
        except (
            ValueError, KeyError, TypeError, AttributeError, RecursionError
        ):  # fmt: skip
            raise ValueError(
                f"{path}:{number}: a line must be a JSON object whose `text` "
                f"is a string. Received: {reprlib.repr(line)}"
            ) from None
        yield from read_text(io.BytesIO(text), counts, divide=None)


@contextlib.contextmanager
def _decompressed(path, file):
    if path.suffix != ".gz":
        yield file
        return
    try:
        yield gzip.GzipFile(fileobj=file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or cut off: {error}") from error


def _read_lines(stream, counts):
    """Yields stripped lines, in pieces of at most `MAX_LINE_BYTES`."""
    rest = b""
    while line := rest + stream.readline(MAX_LINE_BYTES + 1 - len(rest)):
        whole = len(line) <= MAX_LINE_BYTES or line.endswith(b"\n")
        end = len(line) if whole else _end_of_words(line)
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


def _end_of_words(line: bytes) -> int:
    """Where to cut a line that is too long."""
    space = max(line.rfind(space) for space in (b" ", b"\t", b"\r"))
    if space > 0:
        return space
    end = MAX_LINE_BYTES
    while end > MAX_LINE_BYTES - 4 and line[end] & 0b1100_0000 == 0b1000_0000:
        end -= 1  # not within a character
    return end


def _group(
    lines: Iterable[bytes], counts: collections.Counter[str]
) -> Iterator[bytes]:
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
