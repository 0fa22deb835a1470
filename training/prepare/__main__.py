"""Verb: turns text into a data folder to train and evaluate on.

python -m training.prepare pairs --output runs/demo/data
python -m training.prepare text --source novels/ --output runs/novels/data
python -m training.prepare stream --data runs/novels/data --output runs/stream
"""

import os
import signal
import sys

import tyro
from rich.console import Console
from rich.table import Table

from training.prepare.configs import PairsConfig, StreamConfig, TextConfig
from training.prepare.pairs import prepare_pairs
from training.prepare.stream import prepare_stream
from training.prepare.text import prepare_text

# What each kind of folder is made with, and by.
_KINDS = {
    "pairs": (PairsConfig, prepare_pairs),
    "text": (TextConfig, prepare_text),
    "stream": (StreamConfig, prepare_stream),
}


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = tyro.extras.subcommand_cli_from_dict(
        {name: config for name, (config, _) in _KINDS.items()},
        prog="python -m training.prepare",
        description="Turns text into a data folder.",
        args=args,
        use_underscores=True,
    )
    # There is nothing here for a GPU to do, and what TensorFlow logs of one
    # that it misses would bury the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        manifest = dict(_KINDS.values())[type(config)](config)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ValueError, OSError) as error:
        print(f"training.prepare: {error}", file=sys.stderr)
        return 1
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in manifest["counts"].items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    for name, count in manifest["left_out"].items():
        table.add_row(f"left out: {name}", f"{count:,}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
