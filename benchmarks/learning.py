"""What has a run of `training.pretrain` or `training.language_model` learned?

    python -m benchmarks.learning --data runs/novels/data \
        --workdir runs/novels/train

Evaluates the preset on every held-out example. For pre-training it prints the
accuracy on masked tokens, beside that of always guessing the most frequent one,
and on next sentences; for a language model the perplexity per word piece and
per word, and the accuracy. The 95% intervals follow from the spread between
examples.
"""

import collections
import dataclasses
import json
import pathlib
import typing

import numpy as np
import tensorflow as tf

from benchmarks import common
from keras_fixedhead import FixedHeadCausalLM, FixedHeadMaskedLM
from training.causal_lm.configs import LanguageModelConfig
from training.causal_lm.task import LanguageModelTask
from training.engine.configs import named_run
from training.masked_lm.configs import PretrainConfig
from training.masked_lm.task import MaskedLMTask

_KINDS: tuple[tuple[typing.Any, ...], ...] = (
    (MaskedLMTask, PretrainConfig, FixedHeadMaskedLM),
    (LanguageModelTask, LanguageModelConfig, FixedHeadCausalLM),
)


@dataclasses.dataclass(frozen=True)
class Config:
    data: pathlib.Path
    """Its data folder."""
    workdir: pathlib.Path
    """Its work directory."""


def read_task(config: Config) -> typing.Any:
    """The run's task, on all held-out examples and with its preset."""
    settings = json.loads((config.workdir / "config.json").read_bytes())
    [kind] = (kind for kind in _KINDS if kind[0].part in settings)
    make_task, make_config, model = kind
    # All examples, and all held-out text to draw them from.
    every = {"evaluation_examples": 2**31, "shuffle_tokens": 2**31}
    task = make_task(
        named_run(
            make_config,
            config="evaluated",
            data=config.data,
            workdir=config.workdir,
            **settings["model"],
            **settings["training"],
            **settings[make_task.part] | every,
        )
    )
    task.model = model.from_preset(str(config.workdir / "preset"))
    return task


def evaluate(task: typing.Any) -> dict[str, np.ndarray]:
    """Outputs of each held-out example, and what is masked in it, if at all."""
    step = tf.function(task.evaluation_step)
    outputs = collections.defaultdict(list)
    dataset = task.evaluation_dataset(tf.distribute.InputContext(1, 0, 1))
    for batch in common.progress(dataset, "Evaluating"):
        real = batch["index"].numpy() >= 0
        masked = {k: x for k, x in batch.items() if k.startswith("mask_")}
        for name, values in (step(batch) | masked).items():
            outputs[name].append(values.numpy()[real])
    return {name: np.concatenate(values) for name, values in outputs.items()}


def ratio(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The ratio of two sums over examples `[E]`, and its interval's half width.

    By the delta method, for independent examples.
    """
    sums, counts = (values.astype("float64") for values in (sums, counts))
    found = sums.sum() / counts.sum()
    error = np.sqrt(np.sum((sums - found * counts) ** 2)) / counts.sum()
    return found, 1.96 * error


def print_accuracy(what: str, hits: np.ndarray, counts: np.ndarray) -> None:
    accuracy, reach = ratio(hits, counts)
    print(
        f"{what}: {accuracy:.4f} right ({accuracy - reach:.4f} to "
        f"{accuracy + reach:.4f}) of {counts.sum():,.0f}"
    )


def report_masked_lm(
    task: MaskedLMTask, outputs: dict[str, np.ndarray]
) -> None:
    """Prints what the heads predict, and what one constant guess reaches."""
    counts = outputs["predictions"]
    print_accuracy("masked tokens", outputs["masked_lm_accuracy"], counts)
    often = np.bincount(outputs["mask_ids"][outputs["mask_weights"] > 0])
    guess = task.model.preprocessor.tokenizer.id_to_token(int(often.argmax()))
    print(f"always {guess!r}: {often.max() / often.sum():.4f}")
    if task.config.masked_lm.next_sentence:
        hits = outputs["next_sentence_accuracy"]
        print_accuracy("next sentences", hits, np.ones_like(hits))


def report_language_model(
    task: LanguageModelTask, outputs: dict[str, np.ndarray]
) -> None:
    _, reach = ratio(outputs["loss"], outputs["tokens"])
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
    print_accuracy("word pieces", outputs["accuracy"], outputs["tokens"])


def main() -> None:
    config = common.parse(Config)
    task = read_task(config)
    outputs = evaluate(task)
    if isinstance(task, LanguageModelTask):
        report_language_model(task, outputs)
    else:
        report_masked_lm(task, outputs)


if __name__ == "__main__":
    main()
