"""The arguments of the verb."""

import dataclasses
import pathlib
from typing import ClassVar


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderConfig:
    """What every data folder has."""

    kind: ClassVar[str]
    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    overwrite: bool = False
    """Replace an existing data folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsConfig(FolderConfig):
    """Query-document pairs for retrieval, some of them held out."""

    kind: ClassVar[str] = "pairs"
    source: str = "python"
    """`python` (installed docstrings), a jsonl file (`query`, `document` and
    perhaps `negatives`; or sentence-transformers' `anchor`, `positive` and
    `negative`), a BEIR folder, or SQuAD's .json."""
    source_split: str | None = None
    """Judgements of a BEIR folder to train on, qrels/SPLIT.tsv; None: all."""
    heldout_source: str | None = None
    """File or folder of these formats to hold out whole; None holds out a
    fraction of source."""
    heldout_split: str | None = None
    """Judgements of a BEIR folder to hold out; None: all."""
    heldout: float = 0.16
    """Fraction of the clusters of near-duplicates in source to hold out."""
    seed: int = 0
    """Decides which clusters."""
    vocabulary: pathlib.Path | None = None
    """WordPiece vocabulary, one token a line; None learns one."""
    vocabulary_size: int = 16_000
    """The most tokens to learn."""
    lowercase: bool = True
    """Learn the vocabulary from lower-cased text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(FolderConfig):
    """Tokenized documents for pre-training, some of them held out.

    The same command continues a run that was interrupted.
    """

    kind: ClassVar[str] = "text"
    source: tuple[str, ...]
    """Text (a paragraph a line, blank lines between documents), .jsonl (a
    document a line, in `text`), either with .gz; folders and globs of them;
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]. Each counts once."""
    heldout: float | None = None
    """Fraction of the documents to hold out; default 0.01, or 0 with
    heldout_source."""
    heldout_source: tuple[str, ...] = ()
    """Sources to hold out whole; they may be among source."""
    lines_are_documents: bool = False
    """Each line of text is a document, as in LM1B; a record of .jsonl or of
    TensorFlow Datasets always is."""
    seed: int = 0
    """Decides which documents to hold out and to learn a vocabulary from."""
    vocabulary: pathlib.Path | None = None
    """WordPiece vocabulary, one token a line; None learns one."""
    vocabulary_size: int = 30_522
    """The most tokens to learn."""
    vocabulary_megabytes: int = 64
    """The most text to learn the vocabulary from."""
    lowercase: bool = True
    """Lower-case the text and strip accents."""
    shard_megabytes: float = 16
    """Text of a shard; each worker has a few shards in memory."""
    tfds_data_dir: pathlib.Path | None = None
    """Folder of TensorFlow Datasets; None is their default."""
    workers: int | None = None
    """Processes that tokenize, each with two threads and about a gigabyte;
    None is one for every two CPUs."""
    beam: tuple[str, ...] | None = None
    """Run as an Apache Beam pipeline with these options, such as
    runner=FlinkRunner flink_master=HOST:PORT; every machine must see sources
    and output under the same paths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig(FolderConfig):
    """The tokens of a text folder as plain arrays, for training.reproduce.

    Machines without TensorFlow can read them. Every other held-out document is
    for the choice of learning rates, the rest for the test.
    """

    kind: ClassVar[str] = "stream"
    data: pathlib.Path
    """Folder written by `python -m training.prepare text`."""
