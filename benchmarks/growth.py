"""What do larger and more heads bring a trained encoder, on STS-B?

    python -m benchmarks.growth --source all-MiniLM-L6-v2/ --data stsb/ \
        --output runs/growth

Fine-tunes the encoder as it is and with grown heads, with several seeds each,
so that cosine similarities of sentences approach their scores (Reimers &
Gurevych 2019, section 3). Prints Spearman's correlation on the development set,
and what the heads do on its sentences before and after. A run that --output
holds is not run again.
"""

import csv
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import time

import keras
import numpy as np
import scipy.stats
import tensorflow as tf
from rich.progress import track

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder, growth
from keras_fixedhead.convert import from_hugging_face
from keras_fixedhead.diagnostics import attention_report
from training.engine.configs import TrainingConfig
from training.engine.optimizer import build_optimizer


@dataclasses.dataclass(frozen=True)
class Config:
    """The runs to compare."""

    source: pathlib.Path
    """Embedder in Hugging Face's format."""
    data: pathlib.Path
    """Folder with stsb-en-train.csv and stsb-en-dev.csv."""
    output: pathlib.Path
    """Folder of the results."""
    head_size: int = 128
    """Of the grown encoder."""
    num_heads: int = 16
    """Of the grown encoder."""
    seeds: int = 5
    """Runs of each, at least two."""
    epochs: int = 2
    batch_size: int = 32
    """Pairs of an update."""
    learning_rate: float = 5e-5
    """At its peak."""
    report_sentences: int = 64
    """Sentences for the reports on the heads, the longest ones."""


# Sentences `[N, 2]`, and scores between 0 and 1, `[N]`.
Pairs = tuple[np.ndarray, np.ndarray]


def read_pairs(path: pathlib.Path) -> Pairs:
    """Reads a file of STS-B."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    scores = np.array([float(row[2]) for row in rows], "float32") / 5
    return np.array([row[:2] for row in rows]), scores


def start(config: Config, grown: bool) -> FixedHeadTextEmbedder:
    """The encoder before fine-tuning."""
    keras.backend.clear_session()
    model = from_hugging_face(config.source)
    if grown:
        model = growth.grow_heads(model, config.num_heads)
        model = growth.grow_head_size(model, config.head_size)
    return model


def preprocess(model: FixedHeadTextEmbedder, pairs: np.ndarray) -> list[dict]:
    """The model's inputs for the first and for the second sentences."""
    return [
        model.preprocessor.pad_to_longest(tf.constant(texts))
        for texts in pairs.T
    ]


def spearman(
    model: FixedHeadTextEmbedder, pairs: np.ndarray, scores: np.ndarray
) -> float:
    """Correlation of cosine similarities and scores."""
    embed = tf.function(model.embed_packed, reduce_retracing=True)
    similarities = []
    for rows in np.array_split(pairs, -(-len(pairs) // 64)):
        first, second = map(embed, preprocess(model, rows))
        similarities.append(tf.reduce_sum(first * second, axis=-1))
    return float(
        scipy.stats.spearmanr(np.concatenate(similarities), scores).statistic
    )


def fine_tune(
    model: FixedHeadTextEmbedder,
    pairs: np.ndarray,
    scores: np.ndarray,
    seed: int,
    config: Config,
) -> None:
    """Minimizes the squared error of cosine similarities."""
    keras.utils.set_random_seed(seed)
    steps = config.epochs * (len(pairs) // config.batch_size)
    variables = model.trainable_variables
    optimizer = build_optimizer(
        TrainingConfig(
            steps=steps,
            global_batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            warmup_steps=steps // 10,
        ),
        variables,
    )

    @tf.function(reduce_retracing=True)
    def update(first, second, targets):
        with tf.GradientTape() as tape:
            first, second = (
                model.embed_packed(inputs, training=True)
                for inputs in (first, second)
            )
            similarities = tf.reduce_sum(first * second, axis=-1)
            loss = tf.reduce_mean((similarities - targets) ** 2)
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], variables)

    rng = np.random.default_rng(seed)
    per_epoch = steps // config.epochs * config.batch_size
    order = np.concatenate(
        [rng.permutation(len(pairs))[:per_epoch] for _ in range(config.epochs)]
    )
    for rows in track(np.split(order, steps), f"Seed {seed}", transient=True):
        update(*preprocess(model, pairs[rows]), scores[rows])


def run_once(
    config: Config,
    grown: bool,
    seed: int,
    training: Pairs,
    development: Pairs,
) -> dict:
    """Fine-tunes an encoder; with the first seed, reports on its heads."""
    model = start(config, grown)
    longest = sorted(development[0].ravel(), key=len)
    sentences = list(longest[-config.report_sentences :])

    def report(when):
        if not seed:
            print(
                f"grown={grown}, {when}\n", attention_report(model, sentences)
            )

    run = {
        "grown": grown,
        "seed": seed,
        "parameters": model.count_params(),
        "before": spearman(model, *development),
    }
    report("before")
    began = time.perf_counter()
    fine_tune(model, *training, seed, config)
    run["seconds"] = time.perf_counter() - began
    run["after"] = spearman(model, *development)
    report("after")
    print(run, flush=True)
    return run


def main() -> None:
    config = common.parse(Config, "growth", __doc__)
    if config.seeds < 2:
        sys.exit(f"`seeds` must be at least 2. Received: {config.seeds}")
    training = read_pairs(config.data / "stsb-en-train.csv")
    development = read_pairs(config.data / "stsb-en-dev.csv")
    config.output.mkdir(parents=True, exist_ok=True)
    records = config.output / "runs.jsonl"
    records.touch()
    lines = records.read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    done = {(run["grown"], run["seed"]) for run in runs}
    for seed, grown in itertools.product(range(config.seeds), (False, True)):
        if (grown, seed) not in done:
            run = run_once(config, grown, seed, training, development)
            runs.append(run)
            with open(records, "a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
    for grown in (False, True):
        chosen = [run for run in runs if run["grown"] == grown]
        after = [run["after"] for run in chosen]
        seconds = statistics.median(run["seconds"] for run in chosen)
        print(
            f"{'grown' if grown else 'as it is'}: "
            f"{chosen[0]['parameters']:,} parameters, Spearman "
            f"{chosen[0]['before']:.4f} before, {statistics.mean(after):.4f} "
            f"after (standard deviation {statistics.stdev(after):.4f}, "
            f"{min(after):.4f} to {max(after):.4f}), {seconds:.0f} s a run"
        )


if __name__ == "__main__":
    main()
