"""What do larger and more heads bring a trained encoder, on STS-B?

    python -m benchmarks.growth --source all-MiniLM-L6-v2/ --data stsb/

Fine-tunes the encoder as it is and with grown heads, with several seeds each,
so that cosine similarities of sentences approach their scores (Reimers &
Gurevych 2019, section 3). Prints Spearman's correlation on the development set,
and what the heads do on its sentences before and after.
"""

import collections
import csv
import dataclasses
import itertools
import pathlib
import time

import keras
import numpy as np
import scipy.stats
import tensorflow as tf

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder, growth
from keras_fixedhead.convert import from_hugging_face
from keras_fixedhead.diagnostics import attention_report
from training.engine.configs import TrainingConfig
from training.engine.optimizer import build_optimizer


@dataclasses.dataclass(frozen=True)
class Config:
    source: pathlib.Path
    """Embedder in Hugging Face's format."""
    data: pathlib.Path
    """Folder with stsb-en-train.csv and stsb-en-dev.csv."""
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
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    scores = np.array([float(row[2]) for row in rows], "float32") / 5
    return np.array([row[:2] for row in rows]), scores


def similarity(
    model: FixedHeadTextEmbedder, pairs: np.ndarray, training: bool = False
) -> tf.Tensor:
    """Cosines `[B]` of pairs of sentences, strings `[B, 2]`."""
    first, second = (
        model.embed_packed(
            model.preprocessor.pad_to_longest(pairs[:, side]), training=training
        )
        for side in (0, 1)
    )
    return tf.reduce_sum(first * second, axis=-1)


def spearman(model: FixedHeadTextEmbedder, development: Pairs) -> float:
    pairs, scores = development
    found = [
        similarity(model, tf.constant(rows))
        for rows in np.array_split(pairs, -(-len(pairs) // 64))
    ]
    return scipy.stats.spearmanr(np.concatenate(found), scores).statistic


def fine_tune(
    model: FixedHeadTextEmbedder, training: Pairs, seed: int, config: Config
) -> None:
    keras.utils.set_random_seed(seed)
    pairs, scores = training
    per_epoch = len(pairs) // config.batch_size
    steps = config.epochs * per_epoch
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
    def update(pairs, targets):
        with tf.GradientTape() as tape:
            errors = similarity(model, pairs, training=True) - targets
            loss = tf.reduce_mean(errors**2)
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], variables)

    rng = np.random.default_rng(seed)
    order = np.concatenate(
        [
            rng.permutation(len(pairs))[: per_epoch * config.batch_size]
            for _ in range(config.epochs)
        ]
    )
    for rows in common.progress(np.split(order, steps), f"Seed {seed}"):
        update(tf.constant(pairs[rows]), tf.constant(scores[rows]))


def main() -> None:
    config = common.parse(Config)
    training = read_pairs(config.data / "stsb-en-train.csv")
    development = read_pairs(config.data / "stsb-en-dev.csv")
    longest = sorted(development[0].ravel(), key=len)
    sentences = list(longest[-config.report_sentences :])
    runs = collections.defaultdict(list)
    names = ("as it is", "grown")
    for seed, name in itertools.product(range(config.seeds), names):
        keras.backend.clear_session()
        model = from_hugging_face(config.source)
        if name == "grown":
            model = growth.grow_heads(model, config.num_heads)
            model = growth.grow_head_size(model, config.head_size)
        before = spearman(model, development)
        if seed == 0:
            print(f"{name}, before\n{attention_report(model, sentences)}")
        began = time.perf_counter()
        fine_tune(model, training, seed, config)
        seconds = time.perf_counter() - began
        after = spearman(model, development)
        if seed == 0:
            print(f"{name}, after\n{attention_report(model, sentences)}")
        runs[name].append((model.count_params(), before, after, seconds))
        said = f"{name}, seed {seed}: {after:.4f} in {seconds:.0f} s"
        print(said, flush=True)
    rows = []
    for name, values in runs.items():
        parameters, before, after, seconds = np.transpose(values)
        spread = f"{after.std(ddof=1):.4f}; {after.min():.4f} to "
        rows.append(
            [
                name,
                f"{parameters[0]:,.0f}",
                f"{before[0]:.4f}",
                f"{after.mean():.4f} ({spread}{after.max():.4f})",
                f"{np.median(seconds):.0f}",
            ]
        )
    after_title = "after: mean (standard deviation; range)"
    titles = ["", "parameters", "before", after_title, "s per run"]
    common.print_table(titles, rows)


if __name__ == "__main__":
    main()
