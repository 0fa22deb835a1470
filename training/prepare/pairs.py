"""Query-document pairs to train and to evaluate on."""

import os
import pathlib
import tempfile

from rich.console import Console

from training.prepare.configs import PairsConfig
from training.prepare.folder import arguments_of, finish, made_before
from training.prepare.sources import stamps


def prepare_pairs(config: PairsConfig) -> dict:
    """Writes the folder of pairs that `config` describes.

    It holds `train.jsonl`, the BEIR folder `heldout`, `vocabulary.txt`,
    `manifest.json` and `sources.json`. A folder that is there, with the same
    arguments, is left as it is.

    Returns:
        The manifest of the folder: `kind`, `arguments`, `counts`, `left_out`,
        `vocabulary_sha256`, `versions`.

    Raises:
        ValueError: An argument or a line of the source is wrong, or the
            folder is there with other arguments or of files that have
            changed.
        OSError: The source cannot be read or the folder cannot be written.
    """
    if not 0 < config.heldout < 1:
        raise ValueError(
            f"`heldout` must be between 0 and 1. Received: {config.heldout}"
        )
    arguments = arguments_of(config)
    names = [] if config.source == "python" else [config.source]
    if config.vocabulary is not None:
        names.append(str(config.vocabulary))
    files = stamps(names)
    manifest = made_before(
        config.output, "pairs", arguments, files, config.overwrite
    )
    if manifest is not None:
        return manifest

    # TensorFlow takes seconds to import, which neither `--help` nor the
    # processes that read docstrings need wait for.
    from training.data.pairs import write_beir_pairs, write_jsonl
    from training.data.vocabulary import (
        learn_vocabulary,
        read_vocabulary,
        write_vocabulary,
    )
    from training.prepare.split import split_pairs

    status = Console(stderr=True).status
    pairs, left_out = _read_pairs(config.source)
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
    config.output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{config.output.name}.", dir=config.output.parent
    ) as temporary:
        folder = pathlib.Path(temporary, "new")
        folder.mkdir()
        write_jsonl(folder / "train.jsonl", split.train)
        write_beir_pairs(folder / "heldout", split.heldout)
        write_vocabulary(folder / "vocabulary.txt", tokens)
        return finish(
            folder,
            config.output,
            {
                "kind": "pairs",
                "arguments": arguments,
                "counts": {
                    "pairs": len(pairs),
                    "clusters": split.num_clusters,
                    "training pairs": len(split.train),
                    "held-out pairs": len(split.heldout),
                    "tokens in the vocabulary": len(tokens),
                },
                "left_out": left_out,
            },
            files,
        )


def _read_pairs(source):
    from training.data.pairs import read_beir_pairs, read_jsonl
    from training.prepare.docstrings import installed_folders, read_docstrings

    if source == "python":
        return read_docstrings(installed_folders())
    if os.path.isdir(source):
        return read_beir_pairs(source)
    return read_jsonl(source), {}
