"""Where text comes from: files, folders, globs and TensorFlow Datasets."""

import dataclasses
import glob
import io
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from training.corpus.datasets import PREFIX as _TFDS
from training.corpus.datasets import open_dataset
from training.prepare.documents import Tally, read_file, read_text
from training.prepare.sampling import is_held_out

_SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")


@dataclasses.dataclass(frozen=True)
class File:
    """A file of text or of JSON lines.

    Attributes:
        path: The file.
        num_bytes: Its size.
        modified: When it was changed last, in nanoseconds.
        lines_are_documents: Whether each line of text is a document.
    """

    path: pathlib.Path
    num_bytes: int
    modified: int
    lines_are_documents: bool = False

    def documents(self, tally: Tally) -> Iterator[bytes]:
        """Yields the documents, as `read_file` does."""
        return read_file(
            self.path, tally, lines_are_documents=self.lines_are_documents
        )

    def parts(self) -> list["Source"]:
        """What can be read by itself."""
        return [self]


@dataclasses.dataclass(frozen=True)
class TfdsSplit:
    """A split of a prepared TensorFlow dataset.

    Attributes:
        name: Full name of the dataset, with configuration and version.
        split: Split, or a part of one.
        data_dir: Folder of datasets; None is that of TensorFlow Datasets.
        feature: The feature that holds the text.
        num_bytes: Size of the split, estimated by its examples.
        num_examples: Examples in the split.
    """

    name: str
    split: str
    data_dir: str | None
    feature: str
    num_bytes: int
    num_examples: int

    def documents(self, tally: Tally) -> Iterator[bytes]:
        """Yields the documents, one an example.

        Raises:
            OSError: The dataset cannot be read.
        """
        import tensorflow as tf
        import tensorflow_datasets as tfds

        before = tally.bytes_read
        try:
            examples = tfds.builder(
                self.name, data_dir=self.data_dir
            ).as_dataset(
                split=self.split,
                # Or small datasets would be held in memory.
                read_config=tfds.ReadConfig(try_autocache=False),
                decoders=tfds.decode.PartialDecoding({self.feature: True}),
            )
            for number, example in enumerate(
                examples.as_numpy_iterator(), start=1
            ):
                tally.bytes_read = before + (
                    self.num_bytes * number // self.num_examples
                )
                yield from read_text(
                    io.BytesIO(example[self.feature]),
                    tally.counts,
                    divide=None,
                )
        except tf.errors.OpError as error:
            raise OSError(
                f"{_TFDS}{self.name}:{self.split}: cannot be read: {error}"
            ) from error

    def parts(self) -> list["Source"]:
        """The files of the dataset; all of them where `split` is not whole."""
        import tensorflow_datasets as tfds

        splits = tfds.builder(self.name, data_dir=self.data_dir).info.splits
        if self.split not in splits:
            return [self]
        return [
            dataclasses.replace(self, split=f"{self.split}[{n}shard]")
            for n in range(splits[self.split].num_shards)
        ]


Source = File | TfdsSplit


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where documents to train on and held-out ones come from.

    Attributes:
        train: Sources of both.
        heldout: Sources of held-out documents.
        heldout_part: Part of the documents of `train` to hold out.
        seed: Decides which.
    """

    train: list[Source]
    heldout: list[Source]
    heldout_part: float
    seed: int

    @property
    def num_bytes(self) -> int:
        """Size of all sources."""
        return sum(s.num_bytes for s in self.train + self.heldout)

    def documents(self, tally: Tally) -> Iterator[tuple[str, bytes]]:
        """Yields `train` or `heldout`, and a document that belongs there."""
        for source in self.train:
            for document in source.documents(tally):
                yield self.split(document), document
        for source in self.heldout:
            for document in source.documents(tally):
                yield "heldout", document

    def split(self, document: bytes) -> str:
        """Where a document of `train` belongs."""
        held_out = is_held_out(document, self.heldout_part, self.seed)
        return "heldout" if held_out else "train"


def find_sources(
    names: Sequence[str],
    tfds_data_dir: pathlib.Path | None,
    lines_are_documents: bool = False,
) -> list[Source]:
    """Finds what names of sources stand for.

    Args:
        names: Files, globs, folders (every .txt and .jsonl in them, and those
            with .gz, by their paths) and `tfds:NAME[/CONFIG][:VERSION]
            [:SPLIT]`, which is prepared if it is not.
        tfds_data_dir: Folder of TensorFlow datasets; None is their default.
        lines_are_documents: Whether each line of text is a document.

    Returns:
        The sources, in the order of their names, each once.

    Raises:
        OSError: A file is missing, or a dataset cannot be prepared.
        ValueError: A name stands for no text.
    """
    sources: list[Source] = []
    for name in names:
        if name.startswith(_TFDS):
            sources.append(_find_tfds(name, tfds_data_dir))
        else:
            sources += [
                dataclasses.replace(
                    file, lines_are_documents=lines_are_documents
                )
                for file in _find_files(name)
            ]
    first: dict = {}
    for source in sources:
        first.setdefault(_identity(source), source)
    return list(first.values())


def without(sources: Sequence[Source], heldout: Sequence[Source]):
    """Returns the sources that are not held out.

    Raises:
        ValueError: Only a part of one is held out.
    """
    for source in sources:
        for other in heldout:
            if source != other and _overlap(source, other):
                raise ValueError(
                    "`heldout_source` must be a whole source, or apart from "
                    f"all of them. Received: {_TFDS}{other.name}:"
                    f"{other.split} and the source {source.split}"
                )
    held_out = {_identity(source) for source in heldout}
    return [source for source in sources if _identity(source) not in held_out]


def _identity(source):
    """The same for one source, however it is spelled."""
    if isinstance(source, File):
        return os.path.realpath(source.path)
    return source


def _overlap(one, other):
    """Whether two different sources have examples in common."""
    if not isinstance(one, TfdsSplit) or not isinstance(other, TfdsSplit):
        return False
    if (one.name, one.data_dir) != (other.name, other.data_dir):
        return False
    import tensorflow_datasets as tfds

    splits = tfds.builder(one.name, data_dir=one.data_dir).info.splits
    return any(
        a.filename == b.filename
        and a.skip < b.skip + b.take
        and b.skip < a.skip + a.take
        for a in splits[one.split].file_instructions
        for b in splits[other.split].file_instructions
    )


def check_outside(output: pathlib.Path, names: Sequence[str]):
    """Checks that no folder among sources is one that `output` lies in.

    Args:
        output: The data folder to make.
        names: As in `find_sources`.

    Raises:
        ValueError: What is written would be read the next time.
    """
    for name in names:
        folders = [name, *glob.glob(name)]
        for folder in map(pathlib.Path, folders):
            if folder.is_dir() and output.resolve().is_relative_to(
                folder.resolve()
            ):
                raise ValueError(
                    "`output` must lie outside the folders of `source`. "
                    f"Received: {str(output)!r} in {str(folder)!r}"
                )


def stamps(names: Sequence[str]) -> list | None:
    """Sizes and times of the files that sources are in, as JSON values.

    Args:
        names: As in `find_sources`. What is not in files has a version.

    Returns:
        None where a file is gone.
    """
    try:
        files = [
            file
            for name in names
            if not name.startswith(_TFDS)
            for file in _find_files(name)
        ]
    except (OSError, ValueError):
        return None
    return [
        [os.fspath(file.path), file.num_bytes, file.modified] for file in files
    ]


def _find_files(name):
    paths = [name] if os.path.exists(name) else glob.glob(name, recursive=True)
    if not paths:
        raise FileNotFoundError(f"`source` {name!r}: there is no such file")
    files = []
    for path in map(pathlib.Path, sorted(paths)):
        if path.is_dir():
            files += sorted(
                file
                for file in path.rglob("*")
                if file.name.endswith(_SUFFIXES) and file.is_file()
            )
        # A pipe could be read but once.
        elif path.is_file():
            files.append(path)
    if not files:
        raise ValueError(
            f"`source` must be text ({', '.join(_SUFFIXES)} in a folder). "
            f"Received: {name!r}"
        )
    return [
        File(path, stat.st_size, stat.st_mtime_ns)
        for path in files
        for stat in [path.stat()]
    ]


def _find_tfds(name, data_dir):
    builder, split = open_dataset(name, "source", data_dir)
    num_examples = builder.info.splits[split].num_examples
    in_all = sum(part.num_examples for part in builder.info.splits.values())
    return TfdsSplit(
        name=":".join(builder.info.full_name.rsplit("/", 1)),
        split=split,
        data_dir=None if data_dir is None else os.fspath(data_dir),
        feature=_text_feature(name, builder.info.features),
        num_bytes=int(builder.info.dataset_size) * num_examples // in_all,
        num_examples=num_examples,
    )


def _text_feature(name, features):
    strings = [
        key
        for key, feature in features.items()
        if feature.shape == () and np.dtype(feature.np_dtype).kind == "O"
    ]
    if "text" in strings:
        return "text"
    if len(strings) != 1:
        raise ValueError(
            f"`source` {name!r} must have the feature `text`, or one string. "
            f"Its strings: {sorted(strings)}"
        )
    return strings[0]
