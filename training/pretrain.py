r"""Pre-trains an encoder on text and leaves WORKDIR/preset.

    python -m training.pretrain --config small \
        --data runs/novels/data --workdir runs/novels/train

Learns masked tokens and next sentences. The same command continues an
interrupted run.
"""

import sys

from training.engine.cli import TrainingVerb
from training.masked_lm import configs

_verb = TrainingVerb("training.pretrain", __doc__, configs)
parse, train, main = _verb.parse, _verb.train, _verb.main

if __name__ == "__main__":
    sys.exit(main())
