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
from keras_fixedhead.planner.cost import Cost
from keras_fixedhead.planner.search import leaner, suggest
from keras_fixedhead.planner.shape import EncoderShape
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
_SIZES = (*_REQUIRED, "head_size")
_TABLES = ("vocabulary_size", "max_sequence_length", "num_segments")


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
    num_segments: int | None = None
    """With --parameters or sizes. Default: BERT's 2."""
    without_pooler: bool = False
    """With --parameters or sizes: no pooler and no next-sentence head."""
    leaner: bool = False
    """With --preset or sizes: suggest fewer layers with more heads."""
    share: float | None = None
    """With --leaner: the fraction of the parameters to spend. Default: 1.0."""
    depth_share: float | None = None
    """With --leaner: the fraction of the layers to keep. Default: 0.6."""
    json: bool = False
    """Print one JSON object and nothing else."""


def _number(text: str) -> int:
    """Reads 200M as 200,000,000."""
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


def _given(config, names):
    values = {name: getattr(config, name) for name in names}
    return {name: x for name, x in values.items() if x is not None}


def _refuse(config, names, reason):
    for name, value in _given(config, names).items():
        if value is not False:
            raise ValueError(f"`{name}` {reason}. Received: {name}={value!r}")


def _shape(config):
    """The named shape, or the shape of the given sizes."""
    _refuse(config, ("embedding_dim", "count"), "goes with `parameters` only")
    if config.preset is not None:
        _refuse(
            config,
            (*_SIZES, *_TABLES, "without_pooler"),
            "does not go with `preset`, which determines it",
        )
        if config.preset not in presets.SHAPES:
            raise ValueError(
                "`preset` must be one of those that --help lists. "
                f"Received: preset={config.preset!r}"
            )
        return EncoderShape(**presets.shape(config.preset))
    sizes = {"vocabulary_size": 30522, **_given(config, (*_SIZES, *_TABLES))}
    missing = [name for name in _REQUIRED if name not in sizes]
    if missing:
        raise ValueError(
            "give one of `preset`, `parameters`, or the sizes of a shape "
            f"({', '.join(f'`{name}`' for name in _REQUIRED)}); --help has "
            f"examples. Missing: {', '.join(missing)}"
        )
    return EncoderShape(**sizes, pooler=not config.without_pooler)


def plan(config: PlannerConfig) -> tuple[Cost | None, list[Suggestion]]:
    """The costs of the shape, if one is given, and the suggestions."""
    shares = ("share", "depth_share")
    length = config.sequence_length
    if config.parameters is not None:
        _refuse(
            config,
            ("preset", *_SIZES, "batch_size", "leaner", *shares),
            "does not go with `parameters`",
        )
        return None, suggest(
            _number(config.parameters),
            length,
            pooler=not config.without_pooler,
            **_given(config, ("embedding_dim", "count", *_TABLES)),
        )
    shape = _shape(config)
    cost = Cost.of(shape, length, **_given(config, ("batch_size",)))
    if config.leaner:
        return cost, [leaner(shape, length, **_given(config, shares))]
    _refuse(config, shares, "goes with `leaner` only")
    return cost, []


def _print_cost(console, cost):
    shape, parts, length = cost.shape, cost.parameters, cost.sequence_length
    sections = (
        {
            "layers": shape.num_layers,
            "heads of a layer": shape.num_heads,
            "smallest head size": cost.smallest_head_size,
            "embedding size d": shape.hidden_dim,
            "feed-forward width": shape.intermediate_dim,
        },
        {
            **{
                name.replace("_", " "): f"{number:,}"
                for name, number in vars(parts).items()
            },
            "parameters of the encoder": f"{parts.encoder:,}",
            "parameters with both pre-training heads": f"{parts.total:,}",
        },
        {
            **{
                f"weights of the encoder, {dtype}": f"{size:,} bytes"
                for dtype, size in cost.weight_bytes.items()
            },
            **{
                f"an indexed document, {dtype}": f"{size:,} bytes"
                for dtype, size in cost.document_bytes.items()
            },
        },
        {
            f"encoding {length} tokens": f"{cost.forward_flops / 1e9:,.2f} "
            "GFLOP",
            f"training on {length} tokens": f"{cost.training_flops / 1e9:,.2f} "
            "GFLOP",
            f"activations of a step of {cost.batch_size} sequences (XLA, "
            "CPU)": f"{cost.activation_bytes / 2**30:,.2f} GiB",
            "weights, gradients and AdamW's moments, float32": (
                f"{cost.state_bytes / 2**30:,.2f} GiB"
            ),
        },
        {
            f"heads under {length} tokens (bottlenecked)": (
                f"{cost.heads_under_length} of {cost.heads}"
            ),
            f"embedding under {length} tokens (bottlenecked)": (
                "yes" if cost.embedding_under_length else "no"
            ),
            "threshold of depth, log_3(d)": f"{cost.depth_threshold:.1f}",
            "the later fit": f"{cost.fitted_depth_threshold:.1f}",
        },
    )
    table = rich.table.Table(box=rich.box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for section in sections:
        for name, value in section.items():
            table.add_row(name, str(value))
        table.add_section()
    console.print(table)


def _print_suggestions(console, suggestions):
    table = rich.table.Table(box=rich.box.SIMPLE)
    columns = "layers heads size d ff params budget GFLOP B/doc".split()
    for column in ("", *columns):
        table.add_column(column, justify="right")
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
        console.print(f"{place}. {_title(suggestion)}", style="bold")
        reasons = rich.table.Table.grid(padding=(0, 1))
        for reason in suggestion.reasons_for:
            reasons.add_row("+", reason)
        for reason in suggestion.reasons_against:
            reasons.add_row("-", reason)
        console.print(rich.padding.Padding(reasons, (0, 0, 0, 3)))
        console.print()


def _title(suggestion):
    shape = suggestion.shape
    marks = [suggestion.published or "unmeasured"]
    if suggestion.standard_heads:
        marks.append("standard heads, for comparison")
    if suggestion.cost.bottlenecked:
        marks.append("bottlenecked")
    return (
        f"{shape.num_layers} layers, {shape.num_heads} heads of "
        f"{suggestion.cost.smallest_head_size}, d {shape.hidden_dim} "
        f"({'; '.join(marks)})"
    )


def _as_dict(config, cost, suggestions):
    if config.parameters is not None:
        return {"suggestions": [each.as_dict() for each in suggestions]}
    record = cost.as_dict()
    if config.preset is not None:
        published = presets.PUBLISHED.get(config.preset)
        record = {"preset": config.preset, "published": published, **record}
    if suggestions:
        record["leaner"] = suggestions[0].as_dict()
    return record


def _show(config):
    cost, suggestions = plan(config)
    if config.json:
        print(json.dumps(_as_dict(config, cost, suggestions), indent=1))
        return
    console = rich.console.Console(highlight=False)
    if cost is not None:
        _print_cost(console, cost)
    if suggestions:
        _print_suggestions(console, suggestions)


def main(args: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    config = tyro.cli(
        PlannerConfig,
        prog=_PROG,
        description=_DESCRIPTION,
        args=args,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return command.run(_show, config, "keras_fixedhead.planner")


if __name__ == "__main__":
    sys.exit(main())
