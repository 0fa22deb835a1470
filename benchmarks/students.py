"""Which student finds how much, how fast, and how small is it?

    python -m benchmarks.students --collection cranfield cisi medline adi \
        --models teacher=runs/minilm healed=runs/healed/preset \
        --peers runs/peers/bin/python --workdir runs/students

Embeds all documents and queries of BEIR folders with presets and, with
`--peers`, a Python with wordllama, with that package's static word vectors.
Prints the mean nDCG@10 by exact search, the texts a second on a sample of the
documents, which the systems embed in turns, parameters and bytes of the
weights; draws nDCG@10 against texts a second, with the systems that no other
beats in both.
"""

import contextlib
import dataclasses
import pathlib
import subprocess

import numpy as np

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder, pictures, retrieval
from keras_fixedhead.beir import Collection, read_collection
from keras_fixedhead.hardware import processor
from keras_fixedhead.metrics import measure_rankings

_STATIC = "wordllama"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    models: tuple[str, ...]
    """Presets, each as NAME=FOLDER; the first is what others are compared
    to."""
    collection: tuple[pathlib.Path, ...]
    """BEIR folders."""
    workdir: pathlib.Path
    """Folder for embeddings and students.png."""
    peers: pathlib.Path | None = None
    """Python with wordllama. Default: without it."""
    sequence_length: int = 128
    """Longest text, in tokens, for the presets; the rest is cut off."""
    sample: int = 256
    """Documents to time."""
    repeats: int = 5


def start(config: Config, name: str, folder: str) -> subprocess.Popen:
    options = {
        "folder": folder,
        "length": config.sequence_length,
        "workdir": config.workdir,
    }
    if name == _STATIC:
        return common.start_worker(config.peers, _STATIC, options)
    return common.start_worker(None, "encode_text", options)


def quality(
    config: Config, worker: subprocess.Popen, collections: list[Collection]
) -> float:
    """The mean nDCG@10 of exact search."""
    found = []
    for collection in collections:
        documents, queries = (
            common.embeddings(worker, config.workdir, texts)
            for texts in (collection.documents, collection.queries)
        )
        index = retrieval.build_index(documents)
        ranking = retrieval.search_index(index, queries, 10)
        metrics = measure_rankings(
            ranking.documents, collection.relevant, ("nDCG@10",)
        )
        found.append(metrics["nDCG@10"])
    return float(np.mean(found))


def draw(
    rows: dict[str, tuple[float, float]], hardware: str, output: pathlib.Path
) -> None:
    """Draws names at their texts a second and nDCG@10, and the frontier.

    The title names the fastest that keeps 95% of the first one's nDCG@10.
    """
    figure = pictures.new_figure(9, 5.4)
    axis = figure.subplots()
    (first, (rate, ndcg)), *others = rows.items()
    near = [row for row in others if row[1][1] >= 0.95 * ndcg]
    if near:
        name, best = max(near, key=lambda row: row[1][0])
        figure.suptitle(
            f"{best[1] / ndcg:.0%} of {first}'s nDCG@10 at "
            f"{best[0] / rate:.1f} times its speed: {name}"
        )
    front: list[tuple[float, float]] = []
    for name, point in sorted(rows.items(), key=lambda row: -row[1][0]):
        on_front = not front or point[1] > front[-1][1]
        axis.plot(*point, "o", color=pictures.COLORS[0])
        # Beside the frontier, which falls to the right.
        place, side = ((7, 5), "left") if on_front else ((-4, -14), "right")
        axis.annotate(
            name, point, place, textcoords="offset points", ha=side, fontsize=9
        )
        if on_front:
            front.append(point)
    label = "no system is both faster and better"
    axis.plot(*zip(*front), color=pictures.GREY, zorder=0, label=label)
    pictures.use_plain_logs(axis)
    axis.set(
        xlabel=f"texts embedded per second ({hardware})",
        ylabel="nDCG@10, mean of the collections",
    )
    axis.margins(x=0.28, y=0.1)
    axis.grid(alpha=0.3)
    pictures.add_legend(figure)
    pictures.save_figure(figure, output)


def main() -> None:
    config = common.parse(Config)
    config.workdir.mkdir(parents=True, exist_ok=True)
    if not all("=" in model for model in config.models):
        raise SystemExit(
            "`models` must be NAME=FOLDER each. Received: "
            f"{' '.join(config.models)}"
        )
    models = dict(model.split("=", 1) for model in config.models)
    collections = [read_collection(path) for path in config.collection]
    texts = [text for each in collections for text in each.documents]
    order = np.random.default_rng(0).permutation(len(texts))
    sample = [texts[i] for i in order[: config.sample]]
    sizes = {}
    for name, folder in models.items():
        model = FixedHeadTextEmbedder.from_preset(folder)
        weights = pathlib.Path(folder).glob("*.weights.h5")
        stored = sum(file.stat().st_size for file in weights)
        sizes[name] = f"{model.count_params() / 1e6:.1f}", f"{stored / 1e6:.1f}"
    if config.peers is not None:
        models[_STATIC] = ""
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(start(config, name, folder))
            for name, folder in models.items()
        }
        ndcg = {
            name: quality(config, worker, collections)
            for name, worker in workers.items()
        }
        seconds = np.array(
            [
                [common.embed(worker, sample)[0] for worker in workers.values()]
                for _ in common.progress(range(config.repeats), "Measuring")
            ]
        ).T
    rates = len(sample) / np.median(seconds, axis=1)
    faster = np.median(seconds[0] / seconds, axis=1)
    print(common.environment("tensorflow", "keras") + "\n")
    first = next(iter(ndcg.values()))
    common.print_table(
        ["", "nDCG@10", "kept", "texts/s", "speed", "M parameters", "MB"],
        [
            [
                *(name, f"{ndcg[name]:.4f}", f"{ndcg[name] / first:.0%}"),
                *(f"{rate:.4g}", f"{ratio:.2f}"),
                *sizes.get(name, ("", "")),
            ]
            for name, rate, ratio in zip(ndcg, rates, faster)
        ],
    )
    points = {name: (rate, ndcg[name]) for name, rate in zip(ndcg, rates)}
    draw(points, processor(), config.workdir / "students.png")


if __name__ == "__main__":
    main()
