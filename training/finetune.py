r"""Fine-tunes an encoder and leaves WORKDIR/preset.

    python -m training.finetune --config demo_retrieval \
        --data runs/demo/data --workdir runs/demo/train

    python -m training.finetune --config mnli --init runs/novels/train/preset \
        --data MNLI/train.tsv --workdir runs/mnli \
        --validation MNLI/dev_matched.tsv MNLI/dev_mismatched.tsv

    python -m training.finetune --config squad --init runs/novels/train/preset \
        --data train-v1.1.json --validation dev-v1.1.json \
        --workdir runs/squad --seeds 5

The named configuration chooses the task, and each has its own flags: --config
NAME --help lists them. The same command continues an interrupted run.
"""

import sys

from training.engine.named_runs import training_command
from training.tasks import TASKS

parse, train, main = training_command(
    "training.finetune", __doc__, *TASKS.values()
)

if __name__ == "__main__":
    sys.exit(main())
