"""Verb: fine-tunes an encoder and leaves a preset.

    python -m training.finetune --config demo_retrieval \
        --data runs/demo/data --workdir runs/demo/train

    python -m training.finetune --config mnli --init runs/novels/train/preset \
        --data MNLI/train.tsv --workdir runs/mnli \
        --validation MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv

    python -m training.finetune --config squad --init runs/novels/train/preset \
        --data train-v1.1.json --validation dev-v1.1.json \
        --workdir runs/squad --seeds 5

The named configuration decides what for: retrieval, the classification of
texts and pairs of texts, or answers to questions (SQuAD).
"""

import sys

from training.engine import cli
from training.engine.configs import (
    ClassifyConfig,
    FinetuneConfig,
    RetrieveConfig,
    SquadConfig,
)
from training.named_runs import (
    CLASSIFY_CONFIGS,
    RETRIEVE_CONFIGS,
    SQUAD_CONFIGS,
)

_VERB = "training.finetune"


# They import TensorFlow.
def _retrieval():
    from training.retrieval.task import RetrievalTask

    return RetrievalTask


def _classification():
    from training.classification.task import ClassificationTask

    return ClassificationTask


def _span_labeling():
    from training.question_answering.task import SpanLabelingTask

    return SpanLabelingTask


# For each kind of run its named configurations, and what gives the task.
_KINDS = {
    RetrieveConfig: (RETRIEVE_CONFIGS, _retrieval),
    ClassifyConfig: (CLASSIFY_CONFIGS, _classification),
    SquadConfig: (SQUAD_CONFIGS, _span_labeling),
}


def finetune(config: FinetuneConfig) -> dict[str, float]:
    """Trains, or continues, a run; see `training.engine.run.run_task`.

    Args:
        config: A run of any of the kinds.
    """
    cli.import_tensorflow()
    from training.engine.run import run_task

    _, task = _KINDS[type(config)]
    return run_task(config, task())


def parse(args: list[str] | None = None) -> FinetuneConfig:
    """Reads a run, of the kind of its named one, from the command line."""
    named = {}
    for configs, _ in _KINDS.values():
        named |= configs
    return cli.parse(
        named,
        _VERB,
        "Trains an encoder for retrieval, for classification or to answer "
        "questions and leaves WORKDIR/preset. The same command continues a "
        "run that was interrupted. Flags are those of the configuration: "
        "--config NAME --help lists them.",
        args,
    )


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    args = sys.argv[1:] if args is None else args
    config = parse(args)
    if config.seeds == 1:
        return cli.run(finetune, config, _VERB)
    from training.engine.seeds import run_seeds

    ended = []
    status = cli.run(
        lambda config: ended.append(run_seeds(_VERB, config, args)),
        config,
        _VERB,
    )
    return status or ended[0]


if __name__ == "__main__":
    sys.exit(main())
