"""Query-document pairs to train and to evaluate on."""

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
        `vocabulary_sha256`, `versions`. In `counts`, "rows read" is the sum of
        "training pairs", "held-out pairs" and everything in `left_out`.

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
    if config.source == "python" and config.source_split is not None:
        raise ValueError(
            "`source_split` must be None: installed docstrings have no "
            f"splits. Received: {config.source_split!r}"
        )
    if config.heldout_source is None and config.heldout_split is not None:
        raise ValueError(
            "`heldout_split` must be None without `heldout_source`. "
            f"Received: {config.heldout_split!r}"
        )
    arguments = arguments_of(config)
    names = [] if config.source == "python" else [config.source]
    for other in (config.heldout_source, config.vocabulary):
        if other is not None:
            names.append(str(other))
    # Of a folder, `stamps` takes texts alone.
    names += [
        str(table)
        for name in names
        for table in sorted(pathlib.Path(name).glob("qrels/*.tsv"))
    ]
    files = stamps(names)
    manifest = made_before(
        config.output, "pairs", arguments, files, config.overwrite
    )
    if manifest is not None:
        return manifest

    # TensorFlow takes seconds to import, which neither `--help` nor the
    # processes that read docstrings need wait for.
    from keras_fixedhead.beir import write_beir
    from training.corpus.pairs import write_jsonl
    from training.corpus.vocabulary import (
        learn_vocabulary,
        read_vocabulary,
        write_vocabulary,
    )

    status = Console(stderr=True).status
    if config.heldout_source is None:
        train, heldout, counts, left_out = _split(config, status)
    else:
        train, heldout, counts, left_out = _held_apart(config)
    if config.vocabulary is None:
        with status("Learning the vocabulary"):
            tokens = learn_vocabulary(
                [text for p in train for text in (p.query, p.document)],
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
        write_jsonl(folder / "train.jsonl", train)
        write_beir(folder / "heldout", heldout, split="test")
        write_vocabulary(folder / "vocabulary.txt", tokens)
        return finish(
            folder,
            config.output,
            {
                "kind": "pairs",
                "arguments": arguments,
                "counts": {
                    **counts,
                    "training pairs": len(train),
                    "held-out pairs": len(heldout.judgements),
                    "held-out queries": len(heldout.queries),
                    "held-out documents": len(heldout.documents),
                    "tokens in the vocabulary": len(tokens),
                },
                "left_out": left_out,
            },
            files,
        )


def _split(config, status):
    """Parts the source into pairs to train on and pairs to hold out."""
    from training.corpus.pairs import as_beir
    from training.prepare.split import split_pairs

    pairs, left_out = _read_source(config)
    with status("Joining near-duplicates"):
        split = split_pairs(pairs, config.heldout, config.seed)
    if not split.train or not split.heldout:
        raise ValueError(
            f"`source` must give pairs to train on and to hold out. Received: "
            f"{len(pairs)} pairs in {split.num_clusters} clusters, which "
            f"gives {len(split.train)} and {len(split.heldout)}"
        )
    return (
        split.train,
        as_beir(split.heldout),
        {
            "rows read": len(pairs) + sum(left_out.values()),
            "clusters": split.num_clusters,
        },
        left_out | split.left_out,
    )


def _held_apart(config):
    """Takes the whole of both sources, but for queries that are in both."""
    from training.corpus.pairs import (
        as_beir,
        read_jsonl,
        read_judged,
        unanswered,
    )
    from training.prepare.split import words_of

    pairs, left_out = _read_source(config)
    count = len(pairs) + sum(left_out.values())
    heldout = read_judged(config.heldout_source, config.heldout_split)
    if heldout is None:
        rows = read_jsonl(config.heldout_source)
        heldout = as_beir(rows)
        count += len(rows)
        if len(heldout.judgements) < len(rows):
            repeats = len(rows) - len(heldout.judgements)
            left_out["repeats of a held-out pair"] = repeats
    else:
        count += len(heldout.judgements)
        for reason, n in unanswered(config.heldout_source, heldout).items():
            left_out[f"held-out {reason}"] = n
            count += n
    asked = {words_of(heldout.queries[j.query]) for j in heldout.judgements}
    train = [pair for pair in pairs if words_of(pair.query) not in asked]
    if len(train) < len(pairs):
        left_out["pairs of held-out queries"] = len(pairs) - len(train)
    relevant = sum(judgement.score > 0 for judgement in heldout.judgements)
    if not train or not relevant:
        raise ValueError(
            "`source` and `heldout_source` must give different queries to "
            f"train on and to hold out. Received: {len(train)} pairs and "
            f"{relevant} relevant documents"
        )
    return train, heldout, {"rows read": count}, left_out


def _read_source(config):
    from training.corpus.pairs import read_pairs
    from training.prepare.docstrings import installed_folders, read_docstrings

    if config.source == "python":
        return read_docstrings(installed_folders())
    return read_pairs(config.source, config.source_split)
