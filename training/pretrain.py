"""Verb: pre-trains an encoder on text and leaves a preset.

    python -m training.pretrain --config small \
        --data runs/novels/data --workdir runs/novels/train
"""

import sys

from training.engine.verb import TrainingVerb
from training.masked_lm import configs

_verb = TrainingVerb(
    "training.pretrain",
    "Pre-trains an encoder on masked tokens and next sentences and leaves "
    "WORKDIR/preset. The same command continues a run that was interrupted.",
    configs,
)
parse, train, main = _verb.parse, _verb.train, _verb.main

if __name__ == "__main__":
    sys.exit(main())
