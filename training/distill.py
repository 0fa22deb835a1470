"""Verb: trains a smaller embedder after a larger one and leaves a preset.

    python -m training.distill --config compact --teacher runs/minilm \
        --data texts.txt --workdir runs/compact
"""

import sys

from training.distillation import configs
from training.engine.verb import TrainingVerb

_verb = TrainingVerb(
    "training.distill",
    "Trains a smaller embedder to give what a larger one gives, and leaves "
    "WORKDIR/preset. The teacher's embeddings are computed once. The same "
    "command continues a run that was interrupted.",
    configs,
)
parse, train, main = _verb.parse, _verb.train, _verb.main

if __name__ == "__main__":
    sys.exit(main())
