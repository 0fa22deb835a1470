"""Verb: trains a language model on text and leaves a preset.

Novels, in minutes on two cores:

    python -m training.prepare text --source novels/ \
        --vocabulary_size 8000 --output runs/lm/data
    python -m training.language_model --config small_lm \
        --data runs/lm/data --workdir runs/lm/train

LM1B, from files of the benchmark, a sentence a line, or from TensorFlow
Datasets, at the paper's size:

    python -m training.prepare text --lines_are_documents --no_lowercase \
        --source '1b/training-*/news.en-*' \
        --heldout_source '1b/heldout-*/news.en.heldout-00000-*' \
        --vocabulary_size 32000 --output runs/lm1b/data
    python -m training.prepare text --no_lowercase \
        --source tfds:lm1b:train --heldout_source tfds:lm1b:test \
        --vocabulary_size 32000 --output runs/lm1b/data
    python -m training.language_model --config lm1b --num_heads 32 \
        --data runs/lm1b/data --workdir runs/lm1b/heads_32

    FixedHeadCausalLM.from_preset("runs/lm/train/preset").generate("It was")
"""

import sys

from training.engine import cli
from training.engine.configs import LanguageModelConfig
from training.named_runs import LANGUAGE_MODEL_CONFIGS


def language_model(config: LanguageModelConfig) -> dict[str, float]:
    """Trains, or continues, a run; see `training.engine.run.run_task`."""
    cli.import_tensorflow()
    from training.causal_lm.task import LanguageModelTask
    from training.engine.run import run_task

    return run_task(config, LanguageModelTask)


def parse(args: list[str] | None = None) -> LanguageModelConfig:
    """Reads a run from the command line."""
    return cli.parse(
        LANGUAGE_MODEL_CONFIGS,
        "training.language_model",
        "Trains a language model on text and leaves WORKDIR/preset. The same "
        "command continues a run that was interrupted.",
        args,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    return cli.run(language_model, parse(args), "training.language_model")


if __name__ == "__main__":
    sys.exit(main())
