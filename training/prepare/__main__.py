"""Verb: turns text into a data folder to train and evaluate on.

python -m training.prepare pairs --output runs/demo/data
python -m training.prepare text --source novels/ --output runs/novels/data
python -m training.prepare stream --data runs/novels/data --output runs/stream
"""

import os
import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from training.engine import cli
from training.prepare.configs import PairsConfig, StreamConfig, TextConfig


def prepare(config: PairsConfig | TextConfig | StreamConfig) -> None:
    """Makes the folder, and prints what is in it and what is not."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # nothing here uses a GPU
    cli.import_tensorflow()
    if isinstance(config, PairsConfig):
        from training.prepare.pairs import prepare_pairs

        manifest = prepare_pairs(config)
    elif isinstance(config, TextConfig):
        from training.prepare.text import prepare_text

        manifest = prepare_text(config)
    else:
        from training.prepare.stream import prepare_stream

        manifest = prepare_stream(config)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in manifest["counts"].items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    for name, count in manifest["left_out"].items():
        table.add_row(f"left out: {name}", f"{count:,}")
    Console().print(table)


main = cli.command(
    prepare,
    # tyro takes a union; Python has no type for that yet.
    Annotated[PairsConfig, tyro.conf.subcommand("pairs")]  # type: ignore[arg-type]
    | Annotated[TextConfig, tyro.conf.subcommand("text")]
    | Annotated[StreamConfig, tyro.conf.subcommand("stream")],
    "training.prepare",
    "Turns text into a data folder.",
)

if __name__ == "__main__":
    sys.exit(main())
