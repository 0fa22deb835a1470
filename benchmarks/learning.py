"""What has a run of `training.pretrain` learned, beside guessing?

    python -m benchmarks.learning --data runs/novels/data \
        --workdir runs/novels/train

Evaluates the preset on every held-out example, and beside it the one guess that
is right most often among the masked tokens. Prints both accuracies of masked
tokens, and that of next sentences, with 95% confidence intervals: Wilson's for
next sentences, and of masked tokens from the spread between examples.
"""

import collections
import dataclasses
import json
import pathlib

import numpy as np
import scipy.stats
import tensorflow as tf
import tyro
from rich.progress import track

from keras_fixedhead import FixedHeadMaskedLM
from training.configs import (
    MaskedLMConfig,
    ModelConfig,
    PretrainConfig,
    RunConfig,
    TrainingConfig,
)
from training.tasks.masked_lm import MaskedLMTask

_CONTEXT = tf.distribute.InputContext(1, 0, 1)
_Z = scipy.stats.norm.ppf(0.975)


@dataclasses.dataclass(frozen=True)
class Config:
    """A run that is finished."""

    data: pathlib.Path
    """Its data folder."""
    workdir: pathlib.Path
    """Its work directory."""


def read_task(config: Config) -> MaskedLMTask:
    """The run's task, on all held-out examples and with its preset."""
    settings = json.loads((config.workdir / "config.json").read_bytes())
    task = MaskedLMTask(
        PretrainConfig(
            config="evaluated",
            model=ModelConfig(**settings["model"]),
            training=TrainingConfig(**settings["training"]),
            masked_lm=MaskedLMConfig(
                **settings["masked_lm"] | {"evaluation_examples": 2**31}
            ),
            run=RunConfig(data=config.data, workdir=config.workdir),
        )
    )
    task.model = FixedHeadMaskedLM.from_preset(str(config.workdir / "preset"))
    return task


def evaluate(task: MaskedLMTask):
    """Outputs of each held-out example, and how often each token is masked."""
    step = tf.function(task.evaluation_step)
    outputs, labels = collections.defaultdict(list), collections.Counter()
    for batch in track(
        task.evaluation_dataset(_CONTEXT), "Evaluating", transient=True
    ):
        real = batch["index"].numpy() >= 0
        for name, values in step(batch).items():
            outputs[name].append(values.numpy()[real])
        masked = batch["mask_weights"].numpy()[real] > 0
        labels.update(batch["mask_ids"].numpy()[real][masked].tolist())
    return {k: np.concatenate(v) for k, v in outputs.items()}, labels


def main():
    config = tyro.cli(
        Config,
        prog="python -m benchmarks.learning",
        description=__doc__,
        use_underscores=True,
    )
    task = read_task(config)
    outputs, labels = evaluate(task)
    hits, counts = outputs["masked_lm_accuracy"], outputs["predictions"]
    accuracy = hits.sum() / counts.sum()
    # Of a ratio of sums over independent examples, by the delta method.
    error = np.sqrt(np.sum((hits - accuracy * counts) ** 2)) / counts.sum()
    ((token, count),) = labels.most_common(1)
    guess = task.model.preprocessor.tokenizer.id_to_token(token)
    print(f"{len(hits):,} held-out examples, {counts.sum():,.0f} masked tokens")
    print(
        f"masked tokens: {accuracy:.4f} right ({accuracy - _Z * error:.4f} to "
        f"{accuracy + _Z * error:.4f}); always {guess!r}: "
        f"{count / labels.total():.4f}"
    )
    if task.config.masked_lm.next_sentence:
        right = int(outputs["next_sentence_accuracy"].sum())
        interval = scipy.stats.binomtest(right, len(hits)).proportion_ci(
            method="wilson"
        )
        print(
            f"next sentences: {right / len(hits):.4f} right "
            f"({interval.low:.4f} to {interval.high:.4f}); guessing: 0.5"
        )


if __name__ == "__main__":
    main()
