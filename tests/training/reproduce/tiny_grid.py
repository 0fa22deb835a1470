"""A grid of tiny models, and texts for them."""

import dataclasses
import json
import pathlib

import numpy as np

from training.reproduce.cells import SCALES, Cell, grid
from training.reproduce.plan import Plan

SCALE = dataclasses.replace(
    SCALES["cpu"],
    num_layers=1,
    hidden_dim=32,
    intermediate_dim=12,
    sequence_length=5,
    steps=6,
    batch_size=3,
    warmup_steps=2,
    rates=(1e-2,),
    seeds=2,
    context_length=6,
    context_steps=100,
)
VOCABULARY_SIZE = 29


def cell(name: str) -> Cell:
    return next(cell for cell in grid(SCALE) if cell.name == name)


def plan_of(workdir: pathlib.Path, *names: str, **changes) -> Plan:
    """The plan of some cells, at a scale with other sizes."""
    plan = Plan(dataclasses.replace(SCALE, **changes), workdir)
    plan.pilots = [run for run in plan.pilots if run.cell.name in names]
    plan.runs = [run for run in plan.runs if run.cell.name in names]
    return plan


def write_stream(folder: pathlib.Path, *, learnable: bool) -> pathlib.Path:
    """Writes tokens at random, or each followed by the next one."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    counts = {"tokens in the vocabulary": VOCABULARY_SIZE}
    for split, count in (("train", 601), ("tuning", 211), ("test", 307)):
        kinds = np.arange(count) if learnable else rng.integers(0, 19, count)
        np.save(folder / f"{split}.npy", (5 + kinds % 19).astype("<u2"))
        counts[f"{split} tokens"] = count
    manifest = {"kind": "stream", "counts": counts}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
