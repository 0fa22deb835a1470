"""What the data folders are made with: the arguments of the verb."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Query-document pairs for retrieval, some of them held out."""

    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    source: str = "python"
    """`python` (installed docstrings), a jsonl file (`query`, `document` and
    perhaps `negatives`; or sentence-transformers' `anchor`, `positive` and
    `negative`), a BEIR folder, or SQuAD's .json."""
    source_split: str | None = None
    """Judgements of a BEIR folder to train on, qrels/SPLIT.tsv; None takes
    all."""
    heldout_source: str | None = None
    """A file or folder of these formats to hold out, as it is; None holds out
    a part of source."""
    heldout_split: str | None = None
    """Judgements of a BEIR folder to hold out; None takes all."""
    heldout: float = 0.16
    """Part of the clusters of near-duplicates in source to hold out."""
    seed: int = 0
    """Decides which clusters."""
    vocabulary: pathlib.Path | None = None
    """WordPiece vocabulary, one token a line; None learns one."""
    vocabulary_size: int = 16_000
    """The most tokens to learn."""
    lowercase: bool = True
    """Learn them from lower-cased text."""
    overwrite: bool = False
    """Replace a data folder that is there."""


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Tokenized documents for pre-training, some of them held out.

    The same command continues a run that was interrupted.
    """

    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    source: tuple[str, ...]
    """Text (a paragraph a line, blank lines between documents), .jsonl (a
    document a line, in `text`), either with .gz; folders and globs of them;
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]. Each counts once."""
    heldout: float | None = None
    """Part of the documents to hold out; None is 0.01 where there is no
    heldout_source."""
    heldout_source: tuple[str, ...] = ()
    """Sources to hold out whole, also where they are among source."""
    lines_are_documents: bool = False
    """Each line of text is a document, as in LM1B; a record of .jsonl or of
    TensorFlow Datasets is one anyway."""
    seed: int = 0
    """Decides which documents, and which the vocabulary is learned from."""
    vocabulary: pathlib.Path | None = None
    """WordPiece vocabulary, one token a line; None learns one."""
    vocabulary_size: int = 30_522
    """The most tokens to learn."""
    vocabulary_megabytes: int = 64
    """The most text to learn them from."""
    lowercase: bool = True
    """Lower-case the text and strip accents."""
    shard_megabytes: float = 16
    """Text of a shard; workers have a few shards in memory."""
    tfds_data_dir: pathlib.Path | None = None
    """Folder of TensorFlow datasets; None is their default."""
    workers: int | None = None
    """Processes that tokenize, each in two threads and about a gigabyte; None
    is one for two CPUs."""
    beam: tuple[str, ...] | None = None
    """Run as an Apache Beam pipeline with these options, such as
    runner=FlinkRunner flink_master=HOST:PORT; every machine must see sources
    and output under the same paths."""
    overwrite: bool = False
    """Replace a data folder, or an unfinished one, that is there."""


@dataclasses.dataclass(frozen=True)
class StreamConfig:
    """The tokens of a text folder as plain arrays, for training.reproduce.

    Machines without TensorFlow read them. Every other held-out document is
    for the choice of learning rates, the rest for the test.
    """

    data: pathlib.Path
    """Folder written by `python -m training.prepare text`."""
    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    overwrite: bool = False
    """Replace a data folder that is there."""
