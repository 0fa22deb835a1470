"""RESULTS.md, its pictures and results.json, drawn from the records alone."""

import math
import statistics

from keras_fixedhead.files import replaced, write_json
from training.corpus.stream import Stream
from training.reproduce.claims import Verdict, decide, read_claims
from training.reproduce.figures import draw_contexts, draw_language
from training.reproduce.plan import Plan
from training.reproduce.statistics import POWER, noise

_CAUTION = """\
Nats are the mean cross entropy of a word piece of the test text, perplexity is
their exponential. Every run of a cell has the same text in the order of its
seed. A comparison is decided by the {confidence:.0%} confidence interval of the
difference of means over seeds; the deviation that enters it is that of all
language models together, of what neither cell nor seed explains. So are the
bars of the first picture, 95% intervals of means."""


def write_report(plan: Plan, scale_name: str, stream: Stream) -> None:
    """Writes what is known into the work directory.

    Args:
        plan: The runs.
        scale_name: Name of their scale.
        stream: What they were trained on.

    Raises:
        OSError: A file cannot be written.
    """
    claims = read_claims()
    records = {
        cell.name: {
            run.seed: record
            for run in plan.runs
            if run.cell == cell and (record := plan.record(run)) is not None
        }
        for cell in plan.cells
    }
    figures = {
        name: {seed: record["figures"] for seed, record in found.items()}
        for name, found in records.items()
    }
    found_noise = noise(_whole(plan, figures))
    verdicts = [
        decide(claim, scale_name, figures, found_noise, claims.confidence)
        for claim in claims.claims
    ]
    pictures = []
    try:
        language, contexts = (
            plan.workdir / f"{name}.png" for name in ("language", "contexts")
        )
        if draw_language(plan, figures, found_noise, language):
            pictures.append(language.name)
        if draw_contexts(plan, figures, contexts):
            pictures.append(contexts.name)
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")
    text = "\n\n".join(
        [
            "# The claims of the paper, reproduced at a size that fits",
            _head(plan, scale_name, stream, records),
            _CAUTION.format(confidence=claims.confidence),
            _noise(plan, claims, found_noise),
            "## Claims",
            _claims(verdicts),
            *(f"![{name}]({name})" for name in pictures),
            "## Comparisons",
            _comparisons(verdicts),
            "## Cells",
            _cells(plan, records),
            *_contexts(plan, figures),
            *_trials(plan),
            *_failures(plan),
        ]
    )
    path = plan.workdir / "RESULTS.md"
    with replaced(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    write_json(
        plan.workdir / "results.json",
        {
            "scale": scale_name,
            "runs": [r for found in records.values() for r in found.values()],
            "trials": _tried(plan),
            "failed": dict(_failed(plan)),
            "verdicts": {v.claim.name: v.verdict for v in verdicts},
        },
    )
    print(f"wrote {path}")


def _whole(plan, figures):
    """Nats of the language models that have all seeds, `[C, S]`."""
    return [
        [figures[cell.name][seed]["nats"] for seed in sorted(found)]
        for cell in plan.cells
        if cell.contexts is None
        and len(found := figures[cell.name]) == plan.scale.seeds
    ]


def _head(plan, scale_name, stream, records):
    every = [r for found in records.values() for r in found.values()]
    scale = plan.scale
    lines = [
        f"`python -m training.reproduce --scale {scale_name}`: "
        f"{scale.num_layers} layers, d = {scale.hidden_dim}, sequences of "
        f"{scale.sequence_length} word pieces, {scale.steps:,} updates of "
        f"{scale.batch_size} sequences; causal language models on "
        f"{stream.counts['train tokens']:,} word pieces of "
        f"{stream.counts['tokens in the vocabulary']:,} kinds, tested on "
        f"{stream.counts['test tokens']:,}.",
        f"{len(every)} of {len(plan.runs)} runs are made.",
    ]
    if every:
        dates = sorted(record["finished"][:10] for record in every)
        days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        versions = sorted(
            {
                ", ".join(f"{k} {v}" for k, v in r["versions"].items())
                for r in every
            }
        )
        hardware = sorted({record["hardware"] for record in every})
        seconds = [r["figures"]["seconds"] for r in (*every, *_tried(plan))]
        lines.append(
            f"{days}; {'; '.join(versions)}; each run on "
            f"{'; '.join(hardware)}; {sum(seconds) / 3600:.1f} hours one "
            "after the other, with those that chose the learning rates."
        )
    return " ".join(lines)


def _noise(plan, claims, found):
    if found is None:
        return "Too few runs are made to know how much seeds alone differ."
    seeds = plan.scale.seeds
    effect = found.smallest_effect(seeds, claims.confidence)
    return (
        f"That deviation is {found.deviation:.4f} nats ({found.freedom} "
        f"degrees of freedom; {claims.noise:.4f} was expected), so that a "
        f"difference of {effect:.4f} nats, {math.expm1(effect):.1%} of the "
        f"perplexity, is found with a probability of {POWER}."
    )


def _claims(verdicts: list[Verdict]) -> str:
    return _table(
        ("claim", "source", "verdict", "why"),
        (
            (v.claim.says, v.claim.source, f"**{v.verdict}**", v.because)
            for v in verdicts
        ),
    )


def _comparisons(verdicts):
    rows = []
    for verdict in verdicts:
        for outcome in verdict.outcomes:
            test = outcome.test
            margin = f" by less than {test.margin:g} more" * bool(test.margin)
            rows.append(
                (
                    verdict.claim.name,
                    f"{test.lower} under {test.than}{margin}",
                    _signed(outcome.difference, outcome.half_width),
                    str(outcome.seeds),
                    _number(test.smallest_effect),
                    {True: "yes", False: "no", None: ""}[outcome.shown]
                    if not outcome.opposite
                    else "no: the opposite",
                )
            )
    columns = ("claim", "what", "difference", "seeds")
    # What claims.yaml said before the runs; `_noise` says what they make of it.
    return _table((*columns, "detectable, as expected", "shown"), rows)


def _cells(plan, records):
    rows = []
    for cell in plan.cells:
        if cell.contexts is not None:
            continue
        found = [r["figures"] for r in records[cell.name].values()]
        nats = [figures["nats"] for figures in found]
        shape = cell.shape
        first = found[0] if found else {}
        failed = sum(
            plan.failure(run) is not None
            for run in plan.runs
            if run.cell == cell
        )
        rows.append(
            (
                cell.name,
                cell.why,
                str(shape["num_layers"]),
                str(shape["hidden_dim"]),
                f"{shape['num_heads']} x {shape['head_size']}",
                str(shape["intermediate_dim"]),
                _thousands(first.get("parameters")),
                _thousands(first.get("flops")),
                _rate(list(records[cell.name].values())),
                " ".join(f"{x:.4f}" for x in nats)
                + f" {failed} failed" * bool(failed),
                f"{math.exp(statistics.fmean(nats)):.2f}" if nats else "",
                _mean(found, "logit_effective_rank", ".1f"),
                _mean(found, "attention_effective_rank", ".1f"),
                _mean(found, "log_condition_number", ".1f"),
            )
        )
    return _table(
        (
            "cell",
            "why",
            "layers",
            "d",
            "heads",
            "feed-forward",
            "parameters, k",
            "operations a token, k",
            "rate",
            "nats, by seed",
            "perplexity",
            "rank of logits",
            "rank of attention",
            "log of condition",
        ),
        rows,
    )


def _contexts(plan, figures):
    cells = [cell for cell in plan.cells if cell.contexts is not None]
    rows = []
    for size in plan.scale.context_head_sizes:
        row = [str(size)]
        for cell in cells:
            found = list(figures[cell.name].values())
            for name in ("kl", "log_error", "bound"):
                row.append(_mean(found, f"{name}_{size}", ".4f"))
        rows.append(row)
    names = [
        f"{cell.contexts.replace('_', '-')}: {figure}"
        for cell in cells
        for figure in ("KL, nats", "error of logits", "its bound")
    ]
    return [
        "## Contexts",
        f"A single head fitted to contexts of {plan.scale.context_length} "
        "tokens; means over seeds. The error of the logits is relative to all "
        "of them, and the bound is what a head of this size misses at least "
        "(`keras_fixedhead.theory.lowest_error`).",
        _table(("head size", *names), rows),
    ]


def _tried(plan):
    """The records of the runs that choose the learning rates."""
    return [r for run in plan.pilots if (r := plan.record(run)) is not None]


def _trials(plan):
    if not plan.pilots:
        return []
    rows = [
        (*map(str, size), *(_nats(trials[rate]) for rate in plan.scale.rates))
        for size, trials in sorted(plan.trials().items())
    ]
    return [
        "## Learning rates",
        "Nats on the tuning text by the number of layers and the width of all "
        "heads of one, a run each with a seed that does not count. A cell has "
        "the rate of the vertex of the parabola around the best, and between "
        "two widths or depths what is between. A run that learned nothing is "
        "not there, and then the best is taken as it is.",
        _table(
            ("layers", "width", *(f"{r:g}" for r in plan.scale.rates)), rows
        ),
    ]


def _failed(plan):
    return [
        (run.name, failure["error"])
        for run in (*plan.pilots, *plan.runs)
        if (failure := plan.failure(run)) is not None
    ]


def _failures(plan):
    rows = _failed(plan)
    if not rows:
        return ["No run failed."]
    return ["## Failed runs", _table(("run", "error"), rows)]


def _rate(records):
    return f"{records[0]['rate']:.2g}" if records else ""


def _table(columns, rows):
    def line(cells):
        cells = (str(cell).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(' '.join(c.split()) for c in cells)} |"

    return "\n".join(
        [line(columns), "|" + "---|" * len(columns), *map(line, rows)]
    )


def _signed(difference, half_width):
    if difference is None:
        return ""
    if half_width is None:
        return f"{difference:+.4f}"
    return f"{difference:+.4f} ± {half_width:.4f}"


def _number(value):
    return "" if value is None else f"{value:g}"


def _nats(value):
    return f"{value:.4f}" if math.isfinite(value) else "not there"


def _thousands(value):
    return "" if value is None else f"{value / 1000:,.0f}"


def _mean(found, name, form):
    values = [f[name] for f in found if f.get(name) is not None]
    return format(statistics.fmean(values), form) if values else ""
