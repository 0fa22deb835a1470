"""Documents of token ids to pre-train and to evaluate on."""

import dataclasses
import pathlib

from training.prepare import local
from training.prepare.folder import (
    arguments_of,
    as_json,
    finish,
    made_before,
    work_folder,
)
from training.prepare.shards import summarize
from training.prepare.sources import Sources, find_sources


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
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""
    heldout: float | None = None
    """Part of the documents to hold out; None is 0.01 where there is no
    heldout_source."""
    heldout_source: tuple[str, ...] = ()
    """Sources to hold out whole, also where they are among source."""
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


def prepare_text(config: TextConfig) -> dict:
    """Writes the folder of tokenized documents that `config` describes.

    It holds shards, as `training.data.corpus` describes them,
    `vocabulary.txt` and `manifest.json`. A folder that is there, with the same
    arguments, is left as it is; an unfinished one is continued.

    Returns:
        The manifest of the folder: `kind`, `arguments`, `counts`, `left_out`,
        `shards`, `vocabulary_sha256`, `versions`.

    Raises:
        ValueError: An argument or a source is wrong, or the folder is there
            with other arguments or, unfinished, with other sources.
        OSError: A source cannot be read or the folder cannot be written.
    """
    heldout = config.heldout
    if heldout is None:
        heldout = 0.0 if config.heldout_source else 0.01
    if not 0 <= heldout < 1 or (heldout and config.heldout_source):
        raise ValueError(
            "`heldout` must be from 0 to 1, and 0 where there is "
            f"`heldout_source`. Received: {heldout}"
        )
    for name in ("vocabulary_megabytes", "shard_megabytes", "workers"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"`{name}` must be positive. Received: {value}")
    arguments = arguments_of(config)
    manifest = made_before(config.output, "text", arguments, config.overwrite)
    if manifest is not None:
        return manifest

    # What needs TensorFlow runs in other processes.
    heldout_sources = find_sources(config.heldout_source, config.tfds_data_dir)
    sources = Sources(
        train=[
            source
            for source in find_sources(config.source, config.tfds_data_dir)
            if source not in heldout_sources
        ],
        heldout=heldout_sources,
        heldout_part=heldout,
        seed=config.seed,
    )
    plan = {
        "arguments": arguments,
        "sources": as_json(dataclasses.asdict(sources)),
    }
    with work_folder(config.output, plan, config.overwrite) as work:
        if config.beam is None:
            met = local.tokenize(config, sources, work)
        else:
            from training.prepare import beam

            met = beam.tokenize(config, sources, work)
        manifest = summarize(work, met)
        shards = manifest["shards"]
        if not shards["train"] or (
            not shards["heldout"] and (heldout or heldout_sources)
        ):
            raise ValueError(
                "`source` must give documents to train on, and to hold out "
                f"if asked to. Received: {manifest['counts']}, left out: "
                f"{manifest['left_out']}"
            )
        tokens = work.joinpath("data", "vocabulary.txt").read_bytes()
        manifest["counts"]["tokens in the vocabulary"] = tokens.count(b"\n")
        return finish(
            work / "data",
            config.output,
            {"kind": "text", "arguments": arguments} | manifest,
        )
