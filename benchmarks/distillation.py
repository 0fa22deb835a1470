"""What is left of a teacher in a distilled student, on retrieval collections?

    python -m benchmarks.distillation --teacher runs/minilm \
        --student runs/compact/train/preset \
        --teacher_embeddings runs/compact/train/teacher/* \
        --collections cranfield cisi medline adi

Ranks the documents of BEIR folders by exact search with the teacher, with the
teacher cut to the student's dimensions (its principal components on the texts
of the distillation, which need no training), with the student, and with BM25.
Prints nDCG@10 and recall@100 of each, texts a second (batch by batch, the
models take turns), parameters and bytes of an embedding.
"""

import dataclasses
import pathlib
import statistics
import time

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.batched_embedding import TextEncoder
from keras_fixedhead.beir import read_collection
from keras_fixedhead.metrics import measure_rankings
from keras_fixedhead.retrieval import (
    bm25,
    build_index,
    principal_components,
    search_index,
)

_DEPTH = 100


@dataclasses.dataclass(frozen=True)
class Config:
    """The models and the collections."""

    teacher: pathlib.Path
    """Preset of the teacher."""
    student: pathlib.Path
    """Preset of the student."""
    teacher_embeddings: pathlib.Path
    """Folder of .npy files from the distillation."""
    collections: tuple[pathlib.Path, ...]
    """BEIR folders."""
    batch_size: int = 32
    """Texts embedded at once."""


class Encoder:
    """A model, and its texts a second in each batch."""

    def __init__(self, preset: pathlib.Path, batch_size: int):
        self.model = FixedHeadTextEmbedder.from_preset(str(preset))
        self._encode = TextEncoder(self.model, batch_size=batch_size)
        self.size = self._encode.size
        self.rates: list[float] = []

    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeddings `[N, D]` of the texts of a batch."""
        began = time.perf_counter()
        rows = self._encode(texts)
        self.rates.append(len(texts) / (time.perf_counter() - began))
        return rows


def evaluate(
    config: Config,
    folder: pathlib.Path,
    teacher: Encoder,
    student: Encoder,
    components: np.ndarray,
) -> dict[str, tuple[float, float]]:
    """nDCG@10 and recall@100 on one collection, by system."""
    collection = read_collection(folder)
    texts = [*collection.queries, *collection.documents]
    # In turn, so that other work on the machine slows both.
    batches: dict[str, list[np.ndarray]] = {"teacher": [], "student": []}
    for start in track(
        range(0, len(texts), config.batch_size), folder.name, transient=True
    ):
        batch = texts[start : start + config.batch_size]
        batches["teacher"].append(teacher.embed(batch))
        batches["student"].append(student.embed(batch))
    embeddings = {name: np.concatenate(x) for name, x in batches.items()}
    cut = embeddings["teacher"] @ components
    norms = np.linalg.norm(cut, axis=1, keepdims=True)
    embeddings["teacher, cut"] = cut / norms
    rankings = {}
    for name, rows in embeddings.items():
        asked, found = np.split(rows, [len(collection.queries)])
        rankings[name] = search_index(build_index(found), asked, _DEPTH)
    rankings["BM25"] = bm25(collection.documents, collection.queries, _DEPTH)
    figures = {}
    for name, ranking in rankings.items():
        measured = measure_rankings(
            ranking.documents, collection.relevant, ("nDCG@10", "R@100")
        )
        figures[name] = measured["nDCG@10"], measured["R@100"]
    return figures


def main() -> None:
    config = common.parse(Config, "distillation", __doc__)
    teacher, student = (
        Encoder(preset, config.batch_size)
        for preset in (config.teacher, config.student)
    )
    paths = sorted(config.teacher_embeddings.glob("*.npy"))
    components = principal_components(
        np.concatenate([np.load(path) for path in paths]), student.size
    )
    found = {
        folder.name: evaluate(config, folder, teacher, student, components)
        for folder in config.collections
    }
    table = Table("", *found, "mean", title="nDCG@10 (recall@100)")
    for name in ("teacher", "teacher, cut", "student", "BM25"):
        rows = [figures[name] for figures in found.values()]
        rows.append(np.mean(rows, axis=0))
        table.add_row(name, *(f"{n:.3f} ({r:.3f})" for n, r in rows))
    Console().print(table)
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(student.rates, teacher.rates)
    )
    for name, encoder in (("teacher", teacher), ("student", student)):
        print(
            f"{name}: {encoder.model.count_params():,} parameters, "
            f"{4 * encoder.size:,} bytes an embedding, median "
            f"{statistics.median(encoder.rates):.0f} texts/s"
        )
    print(f"student / teacher, texts/s, batch by batch: {ratio:.2f}")


if __name__ == "__main__":
    main()
