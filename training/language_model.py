r"""Trains a language model on text and leaves WORKDIR/preset.

    python -m training.prepare text --source novels/ \
        --vocabulary_size 8000 --output runs/lm/data

    python -m training.language_model --config small_lm \
        --data runs/lm/data --workdir runs/lm/train

    FixedHeadCausalLM.from_preset("runs/lm/train/preset").generate("It was")

docs/language_models.md has LM1B at the paper's size. The same command
continues an interrupted run.
"""

import sys

from training.causal_lm import configs
from training.engine.named_runs import training_command

parse, train, main = training_command(
    "training.language_model", __doc__, configs
)

if __name__ == "__main__":
    sys.exit(main())
