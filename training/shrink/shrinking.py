"""Draws calibration texts, shrinks an embedder, measures it and writes it.

Shape letters: N texts, D embedding size.
"""

import dataclasses
import heapq
import json
import os
import random
import sys
from collections.abc import Iterator

import numpy as np
import rich.console
import rich.table

from keras_fixedhead import (
    FixedHeadTextEmbedder,
    FixedHeadTextEmbedderPreprocessor,
)
from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.metrics import shared_neighbours
from keras_fixedhead.shrink import ShrinkReport
from keras_fixedhead.shrink import shrink as shrink_model
from training.corpus.texts import iterate_texts
from training.engine.model_card import write_card
from training.engine.preset import (
    Origin,
    preset_sha256,
    read_embedder,
    write_preset,
)
from training.shrink.configs import ShrinkConfig

_NEIGHBOURS = 10
# Real and padded tokens of a batch.
_BATCH_TOKENS = 8192
# The draw keeps so many characters for each token wanted.
_CHARACTERS_PER_TOKEN = 12


def shrink(config: ShrinkConfig) -> FixedHeadTextEmbedder:
    """Shrinks the model that `config` describes, and writes its preset.

    An error means that nothing was written.
    """
    if config.output.exists():
        raise FileExistsError(
            f"{config.output} exists. Choose another --output, or remove it"
        )
    teacher = read_embedder(config.source, "source")
    rows, held_out = _draw(teacher.preprocessor, config)
    student, report = shrink_model(
        teacher,
        _batches(teacher.preprocessor, rows),
        config.hidden_dim,
        config.num_layers,
        config.ridge,
        verbose=True,
    )
    metrics = dataclasses.asdict(report)
    _print(report)
    if len(held_out) > _NEIGHBOURS:
        before, after = (
            TextEncoder(model, config.sequence_length)(held_out, label=label)
            for model, label in ((teacher, "Source"), (student, "Shrunk"))
        )
        shared = shared_neighbours(after, before, _NEIGHBOURS)
        metrics[f"heldout_neighbours@{_NEIGHBOURS}"] = shared
        print(
            f"{shared:.1%} of the {_NEIGHBOURS} nearest neighbours kept, of "
            f"{len(held_out):,} held-out texts"
        )

    def save(folder):
        student.save_to_preset(str(folder))
        Origin(
            preset_sha256(config.source, "source"),
            report.layers,
            report.channels,
        ).write(folder)
        settings = dataclasses.asdict(config)
        del settings["output"]
        record = {"settings": {"shrink": settings}, "figures": metrics}
        text = json.dumps(record, indent=2, default=os.fspath)
        (folder / "run.json").write_text(f"{text}\n", encoding="utf-8")
        write_card(folder, config)

    config.output.parent.mkdir(parents=True, exist_ok=True)
    write_preset(config.output, student, save)
    print(
        f"wrote {config.output}: {student.count_params():,} parameters, before "
        f"{teacher.count_params():,}",
        file=sys.stderr,
    )
    return student


def _draw(
    preprocessor: FixedHeadTextEmbedderPreprocessor, config: ShrinkConfig
) -> tuple[list[list[int]], list[str]]:
    """Token ids of texts to fit to, as many from each file; held-out texts."""
    tokenizer, files = preprocessor.tokenizer, config.calibration
    wanted = positive_int("calibration_tokens", config.calibration_tokens)
    held = positive_int("heldout_texts", config.heldout_texts, least=0)
    wanted, others = (-(-x // len(files)) for x in (wanted, held))
    room = preprocessor.room(config.sequence_length, 1)
    rows: list[list[int]] = []
    held_out: list[str] = []
    for path in files:
        texts = sample(
            iterate_texts(path),
            (wanted + others * room) * _CHARACTERS_PER_TOKEN,
            random.Random(config.seed),
        )
        if not texts:
            raise ValueError(f"{path} has no text in it")
        tokens = 0
        while texts and tokens < wanted:
            ids = tokenizer(texts.pop())[:room]
            rows.append(
                [tokenizer.start_token_id, *ids, tokenizer.end_token_id]
            )
            tokens += len(rows[-1])
        if tokens < wanted:
            print(f"{path}: {tokens:,} tokens, not {wanted:,}", file=sys.stderr)
        held_out += texts[:others]
    return rows, held_out


def sample(
    texts: Iterator[str], characters: int, rng: random.Random
) -> list[str]:
    """Different texts in random order, of about so many characters.

    Each gets a random key. Memory holds those of the largest keys only.
    """
    kept: list[tuple[float, str]] = []
    total = 0
    for text in texts:
        key = rng.random()
        if text:
            heapq.heappush(kept, (key, text))
            total += len(text)
        while kept and total - len(kept[0][1]) >= characters:
            total -= len(heapq.heappop(kept)[1])
    return list(dict.fromkeys(text for _, text in sorted(kept)))


def _batches(
    preprocessor: FixedHeadTextEmbedderPreprocessor, rows: list[list[int]]
) -> Iterator[dict[str, np.ndarray]]:
    """Packed ids as inputs of the encoder, int32 `[N, T]`, by length."""
    rows = sorted(rows, key=len)
    while rows:
        longest = len(rows[-1])
        some = rows[-max(1, _BATCH_TOKENS // longest) :]
        del rows[-len(some) :]
        yield preprocessor.pad_rows(some, (len(some), longest))


def _print(report: ShrinkReport) -> None:
    table = rich.table.Table(
        "layer", "from layer", "R2 of states", "R2 of attention logits"
    )
    table.add_row("embeddings", "", f"{report.state_r2[0]:.3f}", "")
    for number, (source, state, logits) in enumerate(
        zip(report.layers, report.state_r2[1:], report.logit_r2, strict=True)
    ):
        table.add_row(f"{number}", f"{source}", f"{state:.3f}", f"{logits:.3f}")
    rich.console.Console().print(table)
