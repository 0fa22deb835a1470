r"""Converts an encoder that others have trained into a preset.

    python -m training.convert --source all-MiniLM-L6-v2/ --output runs/minilm \
        --head_size 128 --num_heads 16

The preset has the same outputs, perhaps with larger or more heads. Outputs are
compared before it is written.
"""

import sys

from training.convert.configs import ConvertConfig
from training.engine import cli


def convert(config: ConvertConfig) -> None:
    """Converts, compares and writes; see `training.convert.conversion`."""
    print("loading Keras and TensorFlow", file=sys.stderr, flush=True)
    from training.convert import conversion

    conversion.convert(config)


main = cli.command(convert, ConvertConfig, "training.convert", __doc__)

if __name__ == "__main__":
    sys.exit(main())
