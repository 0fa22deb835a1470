"""Verb: turns text into a data folder to train and evaluate on.

python -m training.prepare pairs --output runs/demo/data
python -m training.prepare text --source novels/ --output runs/novels/data
"""

import os
import signal
import sys

import tyro
from rich.console import Console
from rich.table import Table

from training.prepare.configs import PairsConfig, TextConfig
from training.prepare.pairs import prepare_pairs
from training.prepare.text import prepare_text


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = tyro.extras.subcommand_cli_from_dict(
        {"pairs": PairsConfig, "text": TextConfig},
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
        if isinstance(config, PairsConfig):
            manifest = prepare_pairs(config)
        else:
            manifest = prepare_text(config)
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
