"""Command: draws what a head of each size misses of random contexts.

python -m keras_fixedhead.theory --output head_size_error.png
"""

import dataclasses
import itertools
import json
import math
import operator
import pathlib
import sys

import numpy as np
import rich.console
import rich.progress
import rich.table

from keras_fixedhead import command, pictures
from keras_fixedhead.argument_checks import positive_int
from keras_fixedhead.files import replaced
from keras_fixedhead.pictures import check_picture, save_figure

# Three of those in Table 2(B) of https://arxiv.org/abs/2002.07028.
_PAPER_HEAD_SIZES = (32, 64, 128)
# What the table shows.
_COLUMNS = (
    "sequence_length",
    "head_size",
    "relative_lowest_error",
    "total_variation",
    "largest_total_variation",
)
# What is drawn, with its title and axis.
_PLOTS = (
    (
        "relative_lowest_error",
        "Error that no training can remove",
        "error of the logits, relative to their norm",
    ),
    (
        "total_variation",
        "Error after gradient descent",
        "total variation of the attention (0 to 1)",
    ),
)


@dataclasses.dataclass(frozen=True)
class TheoryConfig:
    """Draws what a head of each size misses of random contexts.

    Each context is a softmax of normal logits. Left, the lowest error that the
    rank of a head's logits leaves; right, the total variation that gradient
    descent reaches with FixedMultiHeadAttention.
    """

    output: pathlib.Path = pathlib.Path("head_size_error.png")
    """Picture to write; its suffix selects the format. The numbers are written
    beside it, with the suffix .json."""
    sequence_lengths: tuple[int, ...] = (32, 64, 128)
    """Numbers of tokens; each is a line of the picture."""
    scale: float = 1.0
    """Standard deviation of the logits. The larger, the fewer tokens a token
    attends to."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of the contexts; the picture shows their mean."""
    steps: int = 1000
    """Steps of gradient descent."""
    learning_rate: float = 0.1
    """Learning rate of Adam at the start; it falls to 0 along a cosine."""


def fit_random_contexts(config: TheoryConfig) -> list[dict]:
    """What heads miss, a row for each length, head size and seed."""
    # Keras takes seconds to import, which `--help` need not wait for.
    from keras_fixedhead.theory import fit_context, lowest_error

    if not 0.0 < config.scale < math.inf:
        raise ValueError(
            f"`scale` must be a positive number. Received: scale={config.scale}"
        )
    cases = [
        (positive_int("sequence_lengths", length, least=2), size, seed)
        for length in config.sequence_lengths
        for size in _head_sizes(length)
        for seed in config.seeds
    ]
    if not cases:
        raise ValueError("Name at least one of `sequence_lengths` and `seeds`")
    rows = []
    console = rich.console.Console(stderr=True)
    for length, size, seed in rich.progress.track(
        cases, "fitting", console=console
    ):
        rng = np.random.default_rng(seed)
        logits = config.scale * rng.standard_normal((length, length))
        # A column is a token that attends.
        context = np.exp(logits - logits.max(0))
        context /= context.sum(0)
        lowest = lowest_error(context, size)
        fit = fit_context(
            context,
            size,
            steps=config.steps,
            learning_rate=config.learning_rate,
            seed=seed,
        )
        whole = np.linalg.norm(logits - logits.mean(0))
        row = {
            "sequence_length": length,
            "head_size": size,
            "seed": seed,
            "lowest_error": lowest,
            "relative_lowest_error": lowest / whole,
            **dataclasses.asdict(fit),
        }
        del row["scores"]
        rows.append(row)
    return rows


def _head_sizes(length):
    """Eighths of a length, the two sizes around it, and the paper's."""
    largest = length + max(length // 8, 1)
    sizes = {max(length * eighth // 8, 1) for eighth in range(1, 9)}
    sizes |= {size for size in _PAPER_HEAD_SIZES if size <= largest}
    return sorted(sizes | {length - 1, largest})


def _means(rows):
    shape = operator.itemgetter("sequence_length", "head_size")
    groups = [list(group) for _, group in itertools.groupby(rows, shape)]
    return [
        {name: np.mean([row[name] for row in group]).item() for name in rows[0]}
        for group in groups
    ]


def _draw(rows):
    figure = pictures.new_figure(9.6, 4.4)
    figure.suptitle("Heads below the sequence length miss part of the pattern")
    length_of = operator.itemgetter("sequence_length")
    for axis, (name, title, label) in zip(figure.subplots(1, 2), _PLOTS):
        lines = itertools.groupby(rows, length_of)
        for (length, line), color in zip(
            lines, itertools.cycle(pictures.COLORS)
        ):
            points = [(row["head_size"], row[name]) for row in line]
            axis.plot(
                *zip(*points), ".-", color=color, label=f"{length:.0f} tokens"
            )
        pictures.use_plain_logs(axis, base=2)
        axis.set(title=title, xlabel="head size (dimensions)", ylabel=label)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
    pictures.add_legend(figure)
    return figure


def _run(config):
    import keras

    picture, numbers = config.output, config.output.with_suffix(".json")
    check_picture(picture)
    rows = fit_random_contexts(config)
    means = _means(rows)
    table = rich.table.Table(*_COLUMNS)
    for row in means:
        table.add_row(*(f"{row[name]:.4g}" for name in _COLUMNS))
    rich.console.Console().print(table)
    record = {
        **dataclasses.asdict(config),
        "output": picture.name,
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "rows": rows,
    }
    with replaced(numbers) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")
        save_figure(_draw(means), picture)
    print(f"wrote {picture} and {numbers}")


main = command.entry_point(_run, TheoryConfig, "keras_fixedhead.theory")

if __name__ == "__main__":
    sys.exit(main())
