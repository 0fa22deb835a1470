r"""Trains a small embedder to reproduce a larger one; leaves WORKDIR/preset.

    python -m training.distill --config compact --teacher runs/minilm \
        --data texts.txt --workdir runs/compact

Computes the teacher's embeddings once. The same command continues an
interrupted run.
"""

import sys

from training.distillation import configs
from training.engine.named_runs import training_command

parse, train, main = training_command("training.distill", __doc__, configs)

if __name__ == "__main__":
    sys.exit(main())
