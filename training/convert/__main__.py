"""Command: turns existing encoders into presets.

python -m training.convert --source all-MiniLM-L6-v2/ --output runs/minilm \
    --head_size 128 --num_heads 16
"""

import os
import signal
import sys

import tyro

from training.convert.configs import ConvertConfig


def main(args: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    config = tyro.cli(
        ConvertConfig,
        args=args,
        prog="python -m training.convert",
        description="Turns an existing encoder into a preset with the same "
        "outputs, and perhaps with larger or more heads. Compares outputs "
        "before it writes.",
        use_underscores=True,
    )
    print("loading Keras and TensorFlow", file=sys.stderr, flush=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # `--help` need not wait for TensorFlow.
    from training.convert.conversion import convert

    try:
        convert(config)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ValueError, OSError) as error:
        print(f"training.convert: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
