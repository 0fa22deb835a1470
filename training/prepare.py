"""Verb: turns text into a data folder to train and evaluate on.

python -m training.prepare pairs --output runs/demo/data
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import tempfile

import tyro
from rich.console import Console
from rich.table import Table

from training.data.docstrings import installed_folders, read_docstrings
from training.data.pairs import (
    Pair,
    read_beir_pairs,
    read_jsonl,
    write_beir_pairs,
    write_jsonl,
)
from training.data.split import Split, split_pairs


@dataclasses.dataclass(frozen=True)
class PairsConfig:
    """Query-document pairs for retrieval, some of them held out."""

    output: pathlib.Path
    """Folder to write. It appears when it is complete."""
    source: str = "python"
    """`python` (installed docstrings), a jsonl file, or a BEIR folder."""
    heldout: float = 0.16
    """Part of the clusters of near-duplicates to hold out."""
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


def prepare_pairs(config: PairsConfig) -> dict:
    """Writes the folder of pairs that `config` describes.

    It holds `train.jsonl`, the BEIR folder `heldout`, `vocabulary.txt` and
    `manifest.json`. A folder that is there, with the same arguments, is left
    as it is.

    Returns:
        The manifest of the folder: `arguments`, `counts`, `left_out`,
        `vocabulary_sha256`, `versions`.

    Raises:
        ValueError: An argument or a line of the source is wrong, or the
            folder is there with other arguments.
        OSError: The source cannot be read or the folder cannot be written.
    """
    if not 0 < config.heldout < 1:
        raise ValueError(
            f"`heldout` must be between 0 and 1. Received: {config.heldout}"
        )
    arguments = {
        name: str(value) if isinstance(value, pathlib.Path) else value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("output", "overwrite")
    }
    manifest = _read_manifest(config.output)
    if manifest is not None and not config.overwrite:
        if manifest["arguments"] != arguments:
            raise ValueError(
                f"`output` {str(config.output)!r} was made with other "
                f"arguments: {manifest['arguments']}. Choose another folder "
                "or pass --overwrite"
            )
        print(f"{config.output}: made before, with the same arguments")
        return manifest

    # TensorFlow takes seconds to import, which neither `--help` nor the
    # processes that read docstrings need wait for.
    from training.data.vocabulary import learn_vocabulary, read_vocabulary

    status = Console(stderr=True).status
    pairs, left_out = _read_source(config.source)
    with status("Joining near-duplicates"):
        split = split_pairs(pairs, config.heldout, config.seed)
    if not split.train or not split.heldout:
        raise ValueError(
            f"`source` must give pairs to train on and to hold out. Received: "
            f"{len(pairs)} pairs in {split.num_clusters} clusters, which "
            f"gives {len(split.train)} and {len(split.heldout)}"
        )
    if config.vocabulary is None:
        with status("Learning the vocabulary"):
            tokens = learn_vocabulary(
                [text for p in split.train for text in (p.query, p.document)],
                config.vocabulary_size,
                config.lowercase,
            )
    else:
        tokens = read_vocabulary(config.vocabulary)
    vocabulary = "".join(f"{token}\n" for token in tokens).encode()
    manifest = {
        "arguments": arguments,
        "counts": {
            "pairs": len(pairs),
            "clusters": split.num_clusters,
            "training pairs": len(split.train),
            "held-out pairs": len(split.heldout),
            "tokens in the vocabulary": len(tokens),
        },
        "left_out": left_out,
        "vocabulary_sha256": hashlib.sha256(vocabulary).hexdigest(),
        "versions": {
            "python": platform.python_version(),
            "tensorflow-text": importlib.metadata.version("tensorflow-text"),
        },
    }

    _write_folder(config.output, split, vocabulary, manifest)
    print(f"wrote {config.output}")
    return manifest


def _write_folder(
    output: pathlib.Path, split: Split, vocabulary: bytes, manifest: dict
) -> None:
    """Puts a complete folder in the place of `output`, or changes nothing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{output.name}.", dir=output.parent
    ) as temporary:
        folder = pathlib.Path(temporary, "new")
        folder.mkdir()
        write_jsonl(folder / "train.jsonl", split.train)
        write_beir_pairs(folder / "heldout", split.heldout)
        (folder / "vocabulary.txt").write_bytes(vocabulary)
        (folder / "manifest.json").write_text(
            json.dumps(manifest, indent=2) + "\n", encoding="utf-8"
        )
        if output.exists():
            os.replace(output, pathlib.Path(temporary, "old"))
        os.replace(folder, output)


def _read_manifest(output: pathlib.Path) -> dict | None:
    """The manifest of a data folder; None where there is no folder.

    Raises:
        ValueError: There is something else.
    """
    if not output.exists():
        return None
    try:
        text = (output / "manifest.json").read_text(encoding="utf-8")
        manifest = json.loads(text)
        known = {"arguments", "counts", "left_out"} <= set(manifest)
    except (OSError, ValueError, TypeError):
        known = False
    if not known:
        raise ValueError(
            "`output` must be a new folder, or one that this command wrote. "
            f"Received: {str(output)!r}"
        )
    return manifest


def _read_source(source: str) -> tuple[list[Pair], dict[str, int]]:
    if source == "python":
        return read_docstrings(installed_folders())
    if os.path.isdir(source):
        return read_beir_pairs(source)
    return read_jsonl(source), {}


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = tyro.extras.subcommand_cli_from_dict(
        {"pairs": PairsConfig},
        prog="python -m training.prepare",
        description="Turns text into a data folder.",
        args=args,
        use_underscores=True,
    )
    try:
        manifest = prepare_pairs(config)
    except (ValueError, OSError) as error:
        print(f"training.prepare: {error}", file=sys.stderr)
        return 1
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in manifest["counts"].items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    for name, count in manifest["left_out"].items():
        table.add_row(f"left out: {name}", f"{count:,}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
