"""Query-document pairs to train and to evaluate on."""

import pathlib

from rich.console import Console

from keras_fixedhead.beir import Beir, write_beir
from training.corpus import vocabulary
from training.corpus.pairs import (
    Pair,
    as_beir,
    read_jsonl,
    read_judged,
    read_pairs,
    unanswered,
    write_jsonl,
)
from training.prepare.configs import PairsConfig
from training.prepare.docstrings import installed_folders, read_docstrings
from training.prepare.folder import (
    arguments_of,
    finish,
    made_before,
    new_folder,
)
from training.prepare.sources import stamps
from training.prepare.split import split_pairs, words_of


def prepare_pairs(config: PairsConfig) -> dict:
    """Writes a folder of pairs, and returns its manifest.

    The folder has `train.jsonl` and the BEIR folder `heldout`. In `counts`,
    "rows read" is the sum of "training pairs", "held-out pairs" and everything
    in `left_out`.
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
    files = stamps(_file_names(config))
    manifest = made_before(config, "pairs", arguments, files)
    if manifest is not None:
        return manifest

    if config.heldout_source is None:
        train, heldout, counts, left_out = _split_source(config)
    else:
        train, heldout, counts, left_out = _read_both_sources(config)
    if config.vocabulary is None:
        with Console(stderr=True).status("Learning the vocabulary"):
            tokens = vocabulary.learn_vocabulary(
                [text for p in train for text in (p.query, p.document)],
                config.vocabulary_size,
                config.lowercase,
            )
    else:
        tokens = vocabulary.read_vocabulary(config.vocabulary)
    manifest = {
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
    }
    with new_folder(config.output) as folder:
        write_jsonl(folder / "train.jsonl", train)
        write_beir(folder / "heldout", heldout, split="test")
        vocabulary.write_vocabulary(folder / "vocabulary.txt", tokens)
        return finish(folder, config.output, manifest, files)


def _file_names(config):
    names = [] if config.source == "python" else [config.source]
    for other in (config.heldout_source, config.vocabulary):
        if other is not None:
            names.append(str(other))
    # `stamps` looks for texts in a folder, and so misses its judgements.
    tables = [
        str(table)
        for name in names
        for table in sorted(pathlib.Path(name).glob("qrels/*.tsv"))
    ]
    return names + tables


def _read_source(config) -> tuple[list[Pair], dict[str, int]]:
    if config.source == "python":
        return read_docstrings(installed_folders())
    return read_pairs(config.source, config.source_split)


def _split_source(config) -> tuple[list[Pair], Beir, dict, dict]:
    """Returns pairs to train on, held-out ones, counts, and what is left."""
    pairs, left_out = _read_source(config)
    with Console(stderr=True).status("Joining near-duplicates"):
        split = split_pairs(pairs, config.heldout, config.seed)
    if not split.train or not split.heldout:
        raise ValueError(
            f"`source` must give pairs to train on and to hold out. Received: "
            f"{len(pairs)} pairs in {split.num_clusters} clusters, which "
            f"gives {len(split.train)} and {len(split.heldout)}"
        )
    counts = {
        "rows read": len(pairs) + sum(left_out.values()),
        "clusters": split.num_clusters,
    }
    left_out = left_out | split.left_out
    return split.train, as_beir(split.heldout), counts, left_out


def _read_both_sources(config) -> tuple[list[Pair], Beir, dict, dict]:
    """Returns the same, without training pairs of held-out queries."""
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
    heldout_queries = {
        words_of(heldout.queries[judgement.query])
        for judgement in heldout.judgements
    }
    train = [p for p in pairs if words_of(p.query) not in heldout_queries]
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
