"""Verb: what a shape costs, and which shapes a budget of parameters allows.

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
from keras_fixedhead.planner.leaner import leaner
from keras_fixedhead.planner.reasons import in_millions
from keras_fixedhead.planner.shape import EncoderShape
from keras_fixedhead.planner.suggest import suggest

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
    """Named shape whose costs are wanted."""
    parameters: str | None = None
    """Budget to suggest shapes for, such as 200M, 1.5B or 30000000; with both
    pre-training heads, as the paper counts."""
    sequence_length: int = 128
    """Tokens of a sequence; 128 is that of most of BERT's pre-training."""
    batch_size: int | None = None
    """With --preset or sizes: sequences of a training step, of whose
    activations the memory is said; 32."""
    embedding_dim: int | None = None
    """With --parameters: the embedding size, held fixed."""
    count: int | None = None
    """With --parameters: how many shapes to suggest; 5."""
    num_layers: int | None = None
    """Sizes of a shape: layers."""
    num_heads: int | None = None
    """Sizes of a shape: heads of each layer."""
    hidden_dim: int | None = None
    """Sizes of a shape: the embedding size."""
    intermediate_dim: int | None = None
    """Sizes of a shape: the width of the feed-forward layers."""
    head_size: int | None = None
    """Sizes of a shape: of each head; left out, max_sequence_length."""
    vocabulary_size: int | None = None
    """With --parameters or sizes: 30522, BERT's."""
    max_sequence_length: int | None = None
    """With --parameters or sizes: positions; 512, BERT's."""
    num_segments: int | None = None
    """With --parameters or sizes: 2, BERT's."""
    without_pooler: bool = False
    """With --parameters or sizes: no pooler, nor its next-sentence head."""
    leaner: bool = False
    """With --preset or sizes: suggest fewer layers with more heads."""
    share: float | None = None
    """With --leaner: the part of the parameters to spend; 1.0."""
    depth_share: float | None = None
    """With --leaner: the part of the layers to keep; 0.6."""
    json: bool = False
    """Print one JSON object and nothing else."""


def _number(text):
    """Reads 200M as 200,000,000."""
    unit = _SUFFIXES.get(text[-1:].upper())
    try:
        number = decimal.Decimal(text[:-1] if unit else text) * (unit or 1)
        # Of what is not finite a comparison raises, or it is no integer.
        if number > 0 and number % 1 == 0:
            return int(number)
    except decimal.InvalidOperation:
        pass
    raise ValueError(
        "`parameters` must be a positive whole number, with K, M or B at its "
        f"end or without. Received: parameters={text!r}"
    )


def _refuse(config, names, reason):
    for name in names:
        if getattr(config, name) not in (None, False):
            raise ValueError(
                f"`{name}` {reason}. Received: {name}={getattr(config, name)!r}"
            )


def _given(config, names):
    return {
        name: getattr(config, name)
        for name in names
        if getattr(config, name) is not None
    }


def _shape(config):
    """The shape that is named or whose sizes are given."""
    _refuse(config, ("embedding_dim", "count"), "goes with `parameters` only")
    if config.preset is not None:
        _refuse(
            config,
            (*_SIZES, *_TABLES, "without_pooler"),
            "does not go with `preset`, which says it",
        )
        if config.preset not in presets.SHAPES:
            raise ValueError(
                "`preset` must be one of those that --help lists. "
                f"Received: preset={config.preset!r}"
            )
        return EncoderShape(**presets.shape(config.preset))
    missing = [name for name in _REQUIRED if getattr(config, name) is None]
    if len(missing) == len(_REQUIRED):
        raise ValueError(
            "give one of `preset`, `parameters`, or the sizes of a shape "
            f"({', '.join(f'`{name}`' for name in _REQUIRED)}); --help has "
            "examples"
        )
    if missing:
        raise ValueError(
            "a shape needs "
            f"{', '.join(f'`{name}`' for name in _REQUIRED)}. Missing: "
            f"{', '.join(missing)}"
        )
    return EncoderShape(
        **{
            "vocabulary_size": 30522,
            **_given(config, (*_SIZES, *_TABLES)),
            "pooler": not config.without_pooler,
        }
    )


def plan(config):
    """Finds what is asked for.

    Args:
        config: a `PlannerConfig`.

    Returns:
        A `Cost` or `None`, and a list of `Suggestion`.

    Raises:
        ValueError: if a value is wrong, or values do not go together.
    """
    if config.parameters is None:
        shape = _shape(config)
        cost = Cost.of(
            shape, config.sequence_length, **_given(config, ("batch_size",))
        )
        shares = ("share", "depth_share")
        if not config.leaner:
            _refuse(config, shares, "goes with `leaner` only")
            return cost, []
        return cost, [
            leaner(shape, config.sequence_length, **_given(config, shares))
        ]
    _refuse(
        config,
        ("preset", *_SIZES, "batch_size", "leaner", "share", "depth_share"),
        "does not go with `parameters`",
    )
    return None, suggest(
        _number(config.parameters),
        config.sequence_length,
        pooler=not config.without_pooler,
        **_given(config, ("embedding_dim", "count", *_TABLES)),
    )


def _print_cost(console, cost):
    shape, parts = cost.shape, cost.parameters
    table = rich.table.Table(box=rich.box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("layers", f"{shape.num_layers}"),
        ("heads of a layer", f"{shape.num_heads}"),
        ("smallest head size", f"{cost.smallest_head_size}"),
        ("embedding size d", f"{shape.hidden_dim}"),
        ("feed-forward width", f"{shape.intermediate_dim}"),
        None,
        *(
            (name.replace("_", " "), f"{number:,}")
            for name, number in dataclasses.asdict(parts).items()
        ),
        ("parameters of the encoder", f"{parts.encoder:,}"),
        ("parameters with both pre-training heads", f"{parts.total:,}"),
        None,
        *(
            (f"weights of the encoder, {dtype}", f"{size:,} bytes")
            for dtype, size in cost.weight_bytes.items()
        ),
        *(
            (f"an indexed document, {dtype}", f"{size:,} bytes")
            for dtype, size in cost.document_bytes.items()
        ),
        None,
        (
            f"encoding {cost.sequence_length} tokens",
            f"{cost.forward_flops / 1e9:,.2f} GFLOP",
        ),
        (
            f"training on {cost.sequence_length} tokens",
            f"{cost.training_flops / 1e9:,.2f} GFLOP",
        ),
        (
            f"activations of a step of {cost.batch_size} sequences (XLA, CPU)",
            f"{cost.activation_bytes / 2**30:,.2f} GiB",
        ),
        (
            "weights, gradients and AdamW's moments, float32",
            f"{cost.state_bytes / 2**30:,.2f} GiB",
        ),
        None,
        (
            f"heads under {cost.sequence_length} tokens (bottlenecked)",
            f"{cost.heads_under_length} of {cost.heads}",
        ),
        (
            f"embedding under {cost.sequence_length} tokens (bottlenecked)",
            "yes" if cost.embedding_under_length else "no",
        ),
        ("threshold of depth, log_3(d)", f"{cost.depth_threshold:.1f}"),
        ("the later fit", f"{cost.fitted_depth_threshold:.1f}"),
    ]
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    console.print(table)


def _print_suggestions(console, suggestions):
    table = rich.table.Table(box=rich.box.SIMPLE)
    columns = "layers heads size d ff params budget GFLOP B/doc".split()
    for column in ("", *columns):
        table.add_column(column, justify="right")
    for place, suggestion in enumerate(suggestions, start=1):
        cost, shape = suggestion.cost, suggestion.shape
        table.add_row(
            f"{place}",
            f"{shape.num_layers}",
            f"{shape.num_heads}",
            f"{cost.smallest_head_size}",
            f"{shape.hidden_dim}",
            f"{shape.intermediate_dim}",
            in_millions(cost.parameters.total),
            f"{suggestion.budget_share:.0%}",
            f"{cost.forward_flops / 1e9:.1f}",
            f"{cost.document_bytes['float32']}",
        )
    console.print(table)
    for place, suggestion in enumerate(suggestions, start=1):
        title = _title(suggestion)
        console.print(f"{place}. {title}", style="bold")
        for sign, reasons in (
            ("+", suggestion.reasons_for),
            ("-", suggestion.reasons_against),
        ):
            for reason in reasons:
                line = rich.table.Table.grid(padding=(0, 1))
                line.add_row(sign, reason)
                console.print(rich.padding.Padding(line, (0, 0, 0, 3)))
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
        record = {
            "preset": config.preset,
            "published": presets.PUBLISHED.get(config.preset),
            **record,
        }
    if suggestions:
        record["leaner"] = suggestions[0].as_dict()
    return record


def main(args: list[str] | None = None) -> int:
    """Runs the verb and returns its exit status."""
    config = tyro.cli(
        PlannerConfig,
        prog=_PROG,
        description=_DESCRIPTION,
        args=args,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return command.run(_show, config, "keras_fixedhead.planner")


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


if __name__ == "__main__":
    sys.exit(main())
