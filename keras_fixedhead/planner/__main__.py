"""Command: what a shape costs, and which shapes a budget of parameters allows.

python -m keras_fixedhead.planner --parameters 200M --sequence_length 128
"""

import dataclasses
import decimal
import json
import sys

import rich.box
import rich.console
import rich.padding
import rich.table
import tyro

from keras_fixedhead import command, presets
from keras_fixedhead.argument_checks import is_integer, one_of
from keras_fixedhead.planner.cost import Cost, EncoderShape
from keras_fixedhead.planner.search import leaner, suggest
from keras_fixedhead.planner.suggestion import Suggestion, in_millions

_PROG = "python -m keras_fixedhead.planner"
_DESCRIPTION = f"""What a shape costs, and which shape to train for a budget.

Give one of --preset, --parameters, or the sizes of a shape:
  {_PROG} --preset fixed_d512_p128_h8
  {_PROG} --parameters 200M --sequence_length 128 --embedding_dim 512
  {_PROG} --num_layers 12 --num_heads 16 --hidden_dim 512 \
--intermediate_dim 2048 --head_size 128
  {_PROG} --preset bert_base --leaner --json

Presets: {", ".join(presets.SHAPES)}."""

_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9}
_REQUIRED = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim")
_TABLES = ("vocabulary_size", "max_sequence_length", "without_pooler")
_STEP = ("batch_size", "leaner")
# What each way to ask goes with.
_GOES_WITH = {
    "parameters": ("embedding_dim", "count", *_TABLES),
    "preset": _STEP,
    "num_layers": (*_REQUIRED, "head_size", *_TABLES, *_STEP),
}


@dataclasses.dataclass(frozen=True)
class PlannerConfig:
    """What to plan."""

    preset: str | None = None
    """Named shape to cost."""
    parameters: str | None = None
    """Budget to suggest shapes for, such as 200M, 1.5B or 30000000; with both
    pre-training heads, as the paper counts."""
    sequence_length: int = 128
    """Tokens of a sequence; most of BERT's pre-training has 128."""
    batch_size: int | None = None
    """With --preset or sizes: sequences of the training step whose activations
    are estimated. Default: 32."""
    embedding_dim: int | None = None
    """With --parameters: the embedding size, held fixed."""
    count: int | None = None
    """With --parameters: number of suggestions. Default: 5."""
    num_layers: int | None = None
    """Size of a shape: layers."""
    num_heads: int | None = None
    """Size of a shape: heads of each layer."""
    hidden_dim: int | None = None
    """Size of a shape: the embedding size."""
    intermediate_dim: int | None = None
    """Size of a shape: the width of the feed-forward layers."""
    head_size: int | None = None
    """Size of a shape: of each head. Default: max_sequence_length."""
    vocabulary_size: int | None = None
    """With --parameters or sizes. Default: BERT's 30522."""
    max_sequence_length: int | None = None
    """With --parameters or sizes: positions. Default: BERT's 512."""
    without_pooler: bool = False
    """With --parameters or sizes: no pooler and no next-sentence head."""
    leaner: bool = False
    """With --preset or sizes: suggest fewer layers with more heads."""
    json: bool = False
    """Print one JSON object and nothing else."""


def _number(text: str) -> int:
    unit = _SUFFIXES.get(text[-1:].upper())
    try:
        number = decimal.Decimal(text[:-1] if unit else text) * (unit or 1)
        # NaN cannot be compared, and infinity has no remainder.
        if number > 0 and number % 1 == 0:
            return int(number)
    except decimal.InvalidOperation:
        pass
    raise ValueError(
        "`parameters` must be a positive whole number, optionally with the "
        f"suffix K, M or B. Received: parameters={text!r}"
    )


def plan(config: PlannerConfig) -> tuple[Cost | None, list[Suggestion]]:
    """The costs of the shape, if one is given, and the suggestions."""
    given = {
        name: value
        for name, value in vars(config).items()
        if value is not None and value is not False
    }
    length = given.pop("sequence_length")
    given.pop("json", None)
    kind = next((name for name in _GOES_WITH if name in given), None)
    missing = [name for name in _REQUIRED if name not in given]
    if kind is None or (kind == "num_layers" and missing):
        raise ValueError(
            "give one of `preset`, `parameters`, or the sizes of a shape "
            f"({', '.join(_REQUIRED)}); --help has examples. "
            f"Missing: {', '.join(missing)}"
        )
    for name in given:
        if name != kind and name not in _GOES_WITH[kind]:
            raise ValueError(
                f"`{name}` does not go with `{kind}`. "
                f"Received: {name}={given[name]!r}"
            )
    pooler = not given.pop("without_pooler", False)
    if kind == "parameters":
        budget = _number(given.pop(kind))
        return None, suggest(budget, length, pooler=pooler, **given)
    batch_size = given.pop("batch_size", 32)
    given.pop("leaner", None)
    if kind == "preset":
        one_of("preset", config.preset, presets.SHAPES)
        shape = EncoderShape(**presets.shape(given[kind]))
    else:
        sizes = {"vocabulary_size": 30522, **given}
        shape = EncoderShape(**sizes, pooler=pooler)
    cost = Cost.of(shape, length, batch_size)
    return cost, [leaner(shape, length)] if config.leaner else []


def _print_cost(console, cost):
    table = rich.table.Table(box=rich.box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in cost.as_dict().items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, number in parts.items():
            title = f"{name} {part}".replace("_", " ")
            table.add_row(title, _in_units(name, number))
    console.print(table)


def _in_units(name, number):
    if name.endswith("_flops"):
        return f"{number / 1e9:,.2f} GFLOP"
    if name in ("activation_bytes", "state_bytes"):
        return f"{number / 2**30:,.2f} GiB"
    if isinstance(number, float):
        return f"{number:,.1f}"
    return f"{number:,}" if is_integer(number) else str(number)


def _print_suggestions(console, suggestions):
    names = ",layers,heads,size,d,ff,params,budget,GFLOP,B/doc".split(",")
    columns = (rich.table.Column(name, justify="right") for name in names)
    table = rich.table.Table(*columns, box=rich.box.SIMPLE)
    for place, suggestion in enumerate(suggestions, start=1):
        cost, shape = suggestion.cost, suggestion.shape
        values = (
            place,
            shape.num_layers,
            shape.num_heads,
            cost.smallest_head_size,
            shape.hidden_dim,
            shape.intermediate_dim,
            in_millions(cost.parameters.total),
            f"{suggestion.budget_share:.0%}",
            f"{cost.forward_flops / 1e9:.1f}",
            cost.document_bytes["float32"],
        )
        table.add_row(*map(str, values))
    console.print(table)
    for place, suggestion in enumerate(suggestions, start=1):
        cost, shape = suggestion.cost, suggestion.shape
        marks = [suggestion.published or "unmeasured"]
        if shape.standard_heads:
            marks.append("standard heads, for comparison")
        if cost.bottlenecked:
            marks.append("bottlenecked")
        console.print(
            f"{place}. {shape.num_layers} layers, {shape.num_heads} heads of "
            f"{cost.smallest_head_size}, d {shape.hidden_dim} "
            f"({'; '.join(marks)})",
            style="bold",
        )
        reasons = rich.table.Table.grid(padding=(0, 1))
        for reason in suggestion.reasons_for:
            reasons.add_row("+", reason)
        for reason in suggestion.reasons_against:
            reasons.add_row("-", reason)
        console.print(rich.padding.Padding(reasons, (0, 0, 0, 3)))
        console.print()


def _show(config):
    cost, suggestions = plan(config)
    if config.json:
        records = [each.as_dict() for each in suggestions]
        if cost is None:
            record = {"suggestions": records}
        else:
            record = cost.as_dict()
            if config.preset is not None:
                record["preset"] = config.preset
                record["published"] = presets.PUBLISHED.get(config.preset)
            if records:
                record["leaner"] = records[0]
        print(json.dumps(record, indent=1))
        return
    console = rich.console.Console(highlight=False)
    if cost is not None:
        _print_cost(console, cost)
    if suggestions:
        _print_suggestions(console, suggestions)


main = command.entry_point(
    _show,
    PlannerConfig,
    "keras_fixedhead.planner",
    description=_DESCRIPTION,
    config=(tyro.conf.FlagCreatePairsOff,),
)

if __name__ == "__main__":
    sys.exit(main())
