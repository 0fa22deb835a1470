r"""Pre-trains an encoder on text and leaves WORKDIR/preset.

    python -m training.pretrain --config small \
        --data runs/novels/data --workdir runs/novels/train

Learns masked tokens and next sentences. The same command continues an
interrupted run.
"""

import sys

from training.engine.named_runs import training_command
from training.masked_lm import configs

parse, train, main = training_command("training.pretrain", __doc__, configs)

if __name__ == "__main__":
    sys.exit(main())
