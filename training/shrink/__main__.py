r"""Makes a trained encoder narrower or shallower in closed form.

    python -m training.shrink --source runs/minilm --hidden_dim 192 \
        --calibration texts.txt --output runs/shrunk

Every attention head keeps its size. The command takes minutes and no gradient
step; `training.distill --init runs/shrunk` then wins back what is lost.
"""

import sys

from training.engine import cli
from training.shrink.configs import ShrinkConfig


def shrink(config: ShrinkConfig) -> None:
    """Shrinks, measures and writes; see `training.shrink.shrinking`."""
    cli.import_tensorflow()
    from training.shrink import shrinking

    shrinking.shrink(config)


main = cli.command(shrink, ShrinkConfig, "training.shrink", __doc__)

if __name__ == "__main__":
    sys.exit(main())
