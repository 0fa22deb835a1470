"""What has a run of `training.pretrain` or `training.language_model` learned?

    python -m benchmarks.learning --data runs/novels/data \
        --workdir runs/novels/train

Evaluates the preset on every held-out example. For pre-training it prints the
accuracy on masked tokens, beside that of always guessing the most frequent one,
and on next sentences; for a language model the perplexity per word piece and
per word, and the accuracy. The 95% intervals are Wilson's for next sentences,
and otherwise follow from the spread between examples.
"""

import collections
import dataclasses
import json
import pathlib
import sys
import typing

import numpy as np
import scipy.stats
import tensorflow as tf
from rich.progress import track

from benchmarks import common
from keras_fixedhead import FixedHeadCausalLM, FixedHeadMaskedLM
from training.causal_lm.configs import CausalLMConfig, LanguageModelConfig
from training.causal_lm.task import LanguageModelTask
from training.engine.configs import ModelConfig, RunConfig, TrainingConfig
from training.masked_lm.configs import MaskedLMConfig, PretrainConfig
from training.masked_lm.task import MaskedLMTask

_CONTEXT = tf.distribute.InputContext(1, 0, 1)
_Z = scipy.stats.norm.ppf(0.975)


@dataclasses.dataclass(frozen=True)
class Config:
    """A finished run."""

    data: pathlib.Path
    """Its data folder."""
    workdir: pathlib.Path
    """Its work directory."""


def read_task(config: Config) -> MaskedLMTask | LanguageModelTask:
    """The run's task, on all held-out examples and with its preset."""
    settings = json.loads((config.workdir / "config.json").read_bytes())
    if not settings.keys() & {"masked_lm", "language_model"}:
        sys.exit(
            f"`workdir` {str(config.workdir)!r} must be of a run of "
            "training.pretrain or training.language_model. Its config.json "
            f"has {sorted(settings)}"
        )
    shared: dict[str, typing.Any] = {
        "config": "evaluated",
        "model": ModelConfig(**settings["model"]),
        "training": TrainingConfig(**settings["training"]),
        "run": RunConfig(data=config.data, workdir=config.workdir),
    }
    # All examples, and all held-out text to draw them from.
    every = {"evaluation_examples": 2**31, "shuffle_tokens": 2**31}
    preset = str(config.workdir / "preset")
    task: MaskedLMTask | LanguageModelTask
    if "masked_lm" in settings:
        masked = MaskedLMConfig(**settings["masked_lm"] | every)
        task = MaskedLMTask(PretrainConfig(masked_lm=masked, **shared))
        task.model = FixedHeadMaskedLM.from_preset(preset)
    else:
        causal = CausalLMConfig(**settings["language_model"] | every)
        task = LanguageModelTask(
            LanguageModelConfig(language_model=causal, **shared)
        )
        task.model = FixedHeadCausalLM.from_preset(preset)
    return task


def evaluate(
    task: MaskedLMTask | LanguageModelTask,
) -> tuple[dict[str, np.ndarray], collections.Counter]:
    """Outputs of each held-out example, and how often each token is masked."""
    step = tf.function(task.evaluation_step)
    outputs = collections.defaultdict(list)
    labels: collections.Counter[int] = collections.Counter()
    for batch in track(
        task.evaluation_dataset(_CONTEXT), "Evaluating", transient=True
    ):
        real = batch["index"].numpy() >= 0
        for name, values in step(batch).items():
            outputs[name].append(values.numpy()[real])
        if "mask_ids" in batch:
            masked = batch["mask_weights"].numpy()[real] > 0
            labels.update(batch["mask_ids"].numpy()[real][masked].tolist())
    return {k: np.concatenate(v) for k, v in outputs.items()}, labels


def ratio(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The ratio of two sums over examples `[E]`, and its interval's half width.

    By the delta method, for independent examples.
    """
    sums, counts = (values.astype("float64") for values in (sums, counts))
    found = sums.sum() / counts.sum()
    error = np.sqrt(np.sum((sums - found * counts) ** 2)) / counts.sum()
    return found, _Z * error


def report_masked_lm(
    task: MaskedLMTask,
    outputs: dict[str, np.ndarray],
    labels: collections.Counter[int],
) -> None:
    """Prints what the heads predict, and what one constant guess reaches."""
    hits, counts = outputs["masked_lm_accuracy"], outputs["predictions"]
    accuracy, reach = ratio(hits, counts)
    ((token, count),) = labels.most_common(1)
    model: typing.Any = task.model
    guess = model.preprocessor.tokenizer.id_to_token(token)
    print(f"{len(hits):,} held-out examples, {counts.sum():,.0f} masked tokens")
    print(
        f"masked tokens: {accuracy:.4f} right ({accuracy - reach:.4f} to "
        f"{accuracy + reach:.4f}); always {guess!r}: "
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


def report_language_model(
    task: LanguageModelTask, outputs: dict[str, np.ndarray]
) -> None:
    """Prints perplexities and accuracy."""
    losses, pieces = outputs["losses"], outputs["pieces"]
    _, reach = ratio(losses, pieces)
    print(f"{len(losses):,} held-out examples, {pieces.sum():,} word pieces")
    found = task.figures(outputs)
    # Nats of a word are those of a piece, times the pieces of a word.
    nats = found["heldout_loss"]
    for unit in ("word_piece", "word"):
        perplexity = found[f"heldout_perplexity_per_{unit}"]
        factor = np.exp(reach * np.log(perplexity) / nats)
        print(
            f"perplexity per {unit.replace('_', ' ')}: {perplexity:.1f} "
            f"({perplexity / factor:.1f} to {perplexity * factor:.1f})"
        )
    accuracy, reach = ratio(outputs["hits"], pieces)
    print(
        f"word pieces: {accuracy:.4f} right ({accuracy - reach:.4f} to "
        f"{accuracy + reach:.4f})"
    )


def main() -> None:
    config = common.parse(Config, "learning", __doc__)
    task = read_task(config)
    outputs, labels = evaluate(task)
    if isinstance(task, LanguageModelTask):
        report_language_model(task, outputs)
    else:
        report_masked_lm(task, outputs, labels)


if __name__ == "__main__":
    main()
