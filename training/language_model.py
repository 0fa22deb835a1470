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

from training.causal_lm import configs
from training.engine.verb import TrainingVerb

_verb = TrainingVerb(
    "training.language_model",
    "Trains a language model on text and leaves WORKDIR/preset. The same "
    "command continues a run that was interrupted.",
    configs,
)
parse, train, main = _verb.parse, _verb.train, _verb.main

if __name__ == "__main__":
    sys.exit(main())
