"""Verb: turns text into a data folder to train and evaluate on.

python -m training.prepare pairs --output runs/demo/data
python -m training.prepare text --source novels/ --output runs/novels/data
python -m training.prepare stream --data runs/novels/data --output runs/stream
"""

import importlib
import os
import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Column, Table

from training.engine import cli
from training.prepare import configs


def prepare(config: configs.FolderConfig) -> None:
    """Makes the folder, and prints what is in it and what is not."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # nothing here uses a GPU
    cli.import_tensorflow()
    module = importlib.import_module(f"training.prepare.{config.kind}")
    manifest = getattr(module, f"prepare_{config.kind}")(config)
    table = Table(Column(), Column(justify="right"), show_header=False)
    left_out = manifest["left_out"].items()
    for name, count in (
        *manifest["counts"].items(),
        *((f"left out: {reason}", count) for reason, count in left_out),
    ):
        table.add_row(name, f"{count:,}")
    Console().print(table)


main = cli.command(
    prepare,
    Annotated[configs.PairsConfig, tyro.conf.subcommand("pairs")]
    | Annotated[configs.TextConfig, tyro.conf.subcommand("text")]
    | Annotated[configs.StreamConfig, tyro.conf.subcommand("stream")],
    "training.prepare",
    "Turns text into a data folder.",
)

if __name__ == "__main__":
    sys.exit(main())
