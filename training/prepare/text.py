"""Documents of token ids to pre-train and to evaluate on."""

import dataclasses

from training.prepare import local
from training.prepare.configs import TextConfig
from training.prepare.folder import (
    arguments_of,
    as_json,
    finish,
    made_before,
    work_folder,
)
from training.prepare.shards import summarize
from training.prepare.sources import (
    Sources,
    check_outside,
    find_sources,
    stamps,
    without,
)


def prepare_text(config: TextConfig) -> dict:
    """Writes a folder of tokenized documents, and returns its manifest.

    One that was made with the same arguments is left as it is; an unfinished
    one is continued. Shards are those of `training.corpus.tokenized`.
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
    names = [*config.source, *config.heldout_source]
    if config.vocabulary is not None:
        names.append(str(config.vocabulary))
    check_outside(config.output, names)
    files = stamps(names)
    manifest = made_before(config, "text", arguments, files)
    if manifest is not None:
        return manifest

    train_sources, heldout_sources = (
        find_sources(names, config.tfds_data_dir, config.lines_are_documents)
        for names in (config.source, config.heldout_source)
    )
    sources = Sources(
        train=without(train_sources, heldout_sources),
        heldout=heldout_sources,
        heldout_part=heldout,
        seed=config.seed,
    )
    plan = {
        "arguments": arguments,
        "sources": as_json(dataclasses.asdict(sources)),
        "files": files,
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
                f"if any are held out. Received: {manifest['counts']}, left "
                f"out: {manifest['left_out']}"
            )
        tokens = work.joinpath("data", "vocabulary.txt").read_bytes()
        manifest["counts"]["tokens in the vocabulary"] = tokens.count(b"\n")
        return finish(
            work / "data",
            config.output,
            {"kind": "text", "arguments": arguments} | manifest,
            files,
        )
