"""RESULTS.md, its pictures and results.json, drawn from the records alone."""

import math
import statistics
from collections.abc import Sequence

from keras_fixedhead.files import replaced, write_json
from training.corpus.folder import Stream
from training.reproduce.claims import (
    POWER,
    Claims,
    Noise,
    Verdict,
    decide,
    estimate_noise,
    read_claims,
)
from training.reproduce.figures import draw_contexts, draw_language
from training.reproduce.plan import Plan

_CAUTION = """\
Nats are the mean cross entropy of a word piece of the test text; perplexity is
their exponential. All runs with the same seed see the same text in the same
order. A comparison is decided by the {confidence:.0%} confidence interval of
the difference of means over seeds. Its deviation is estimated from all
language models together, as what neither cell nor seed explains. The same
deviation gives the bars of the first picture, 95% intervals of means."""


def write_report(plan: Plan, scale_name: str, stream: Stream) -> None:
    """Writes what the runs show into the work directory."""
    claims = read_claims()
    records: dict[str, dict[int, dict]] = {cell.name: {} for cell in plan.cells}
    for run in plan.runs:
        if record := plan.record(run):
            records[run.cell.name][run.seed] = record
    metrics = {
        name: {seed: record["figures"] for seed, record in found.items()}
        for name, found in records.items()
    }
    # Only the language models that have all seeds, [C, S].
    noise = estimate_noise(
        [
            [found[seed]["nats"] for seed in sorted(found)]
            for found in (metrics[cell.name] for cell in plan.language_cells)
            if len(found) == plan.scale.seeds
        ]
    )
    verdicts = [
        decide(claim, scale_name, metrics, noise, claims.confidence)
        for claim in claims.claims
    ]
    pictures = []
    try:
        if draw_language(plan, metrics, noise, plan.workdir / "language.png"):
            pictures.append("![language.png](language.png)")
        if draw_contexts(plan, metrics, plan.workdir / "contexts.png"):
            pictures.append("![contexts.png](contexts.png)")
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")
    every = [r for found in records.values() for r in found.values()]
    trials = [r for run in plan.pilots if (r := plan.record(run))]
    failed = {
        run.name: failure["error"]
        for run in (*plan.pilots, *plan.runs)
        if (failure := plan.failure(run))
    }
    parts = [
        "# The claims of the paper, reproduced at a size that fits",
        _head(plan, scale_name, stream, every, trials),
        _CAUTION.format(confidence=claims.confidence),
        _noise(plan, claims, noise),
        "## Claims",
        _table(
            [
                {
                    "claim": verdict.claim.says,
                    "source": verdict.claim.source,
                    "verdict": f"**{verdict.verdict}**",
                    "why": verdict.because,
                }
                for verdict in verdicts
            ]
        ),
        *pictures,
        "## Comparisons",
        _comparisons(verdicts),
        "## Cells",
        _cells(plan, records),
        *_contexts(plan, metrics),
        *_trials(plan),
    ]
    rows = [{"run": name, "error": why} for name, why in failed.items()]
    parts += ["## Failed runs", _table(rows)] if rows else ["No run failed."]
    path = plan.workdir / "RESULTS.md"
    with replaced(path) as partial:
        partial.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    write_json(
        plan.workdir / "results.json",
        {
            "scale": scale_name,
            "runs": every,
            "trials": trials,
            "failed": failed,
            "verdicts": {v.claim.name: v.verdict for v in verdicts},
        },
    )
    print(f"wrote {path}")


def _head(plan, scale_name, stream, records, trials):
    scale = plan.scale
    text = (
        f"`python -m training.reproduce --scale {scale_name}`: "
        f"{scale.num_layers} layers, d = {scale.hidden_dim}, sequences of "
        f"{scale.sequence_length} word pieces, {scale.steps:,} updates of "
        f"{scale.batch_size} sequences; causal language models on "
        f"{stream.counts['train tokens']:,} word pieces of "
        f"{stream.counts['tokens in the vocabulary']:,} kinds, tested on "
        f"{stream.counts['test tokens']:,}. "
        f"{len(records)} of {len(plan.runs)} runs are made."
    )
    if not records:
        return text
    dates = sorted(record["finished"][:10] for record in records)
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    versions = {
        ", ".join(f"{k} {v}" for k, v in record["versions"].items())
        for record in records
    }
    hardware = {record["hardware"] for record in records}
    seconds = sum(r["figures"]["seconds"] for r in (*records, *trials))
    return (
        f"{text} {days}; {'; '.join(sorted(versions))}; each run on "
        f"{'; '.join(sorted(hardware))}; {seconds / 3600:.1f} hours "
        "one after the other, with those that chose the learning rates."
    )


def _noise(plan: Plan, claims: Claims, noise: Noise | None) -> str:
    if noise is None:
        return "There are too few runs to estimate how much seeds alone differ."
    effect = noise.smallest_effect(plan.scale.seeds, claims.confidence)
    return (
        f"That deviation is {noise.deviation:.4f} nats ({noise.freedom} "
        f"degrees of freedom; {claims.noise:.4f} was expected), so that a "
        f"difference of {effect:.4f} nats, {math.expm1(effect):.1%} of the "
        f"perplexity, is found with a probability of {POWER}."
    )


def _comparisons(verdicts: list[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        for outcome in verdict.outcomes:
            test = outcome.test
            what = f"{test.lower} under {test.than}"
            if test.margin:
                what += f" by less than {test.margin:g} more"
            difference = _format(outcome.difference, "+.4f")
            if width := _format(outcome.half_width, ".4f"):
                difference += f" ± {width}"
            row = {
                "claim": verdict.claim.name,
                "what": what,
                "difference": difference,
                "seeds": outcome.seeds,
                # As in claims.yaml; `_noise` says what it turned out to be.
                "detectable, as expected": _format(test.smallest_effect, "g"),
                "shown": outcome.answer,
            }
            rows.append(row)
    return _table(rows)


def _cells(plan: Plan, records: dict[str, dict[int, dict]]) -> str:
    rows = []
    for cell in plan.language_cells:
        found = list(records[cell.name].values())
        metrics = [record["figures"] for record in found]
        nats = [m["nats"] for m in metrics]
        by_seed = " ".join(f"{value:.4f}" for value in nats)
        runs = [run for run in plan.runs if run.cell == cell]
        if failed := sum(plan.failure(run) is not None for run in runs):
            by_seed += f" {failed} failed"
        row = {
            "cell": cell.name,
            "why": cell.why,
            "layers": cell.shape["num_layers"],
            "d": cell.shape["hidden_dim"],
            "heads": "{num_heads} x {head_size}".format(**cell.shape),
            "feed-forward": cell.shape["intermediate_dim"],
            "parameters, k": _mean(metrics, "parameters", ",.0f", 1e-3),
            "operations a token, k": _mean(metrics, "flops", ",.0f", 1e-3),
            "rate": _mean(found, "rate", ".2g"),
            "nats, by seed": by_seed,
            "perplexity": (
                f"{math.exp(statistics.fmean(nats)):.2f}" if nats else ""
            ),
            "rank of logits": _mean(metrics, "logit_effective_rank", ".1f"),
            "rank of attention": _mean(
                metrics, "attention_effective_rank", ".1f"
            ),
            "log of condition": _mean(metrics, "log_condition_number", ".1f"),
        }
        rows.append(row)
    return _table(rows)


def _contexts(plan, metrics):
    rows = []
    for size in plan.scale.context_head_sizes:
        row = {"head size": size}
        for cell in plan.context_cells:
            kind = cell.contexts.replace("_", "-")
            for name, label in (
                ("kl", "KL, nats"),
                ("log_error", "error of logits"),
                ("bound", "its bound"),
            ):
                row[f"{kind}: {label}"] = _mean(
                    list(metrics[cell.name].values()), f"{name}_{size}", ".4f"
                )
        rows.append(row)
    return (
        "## Contexts",
        f"A single head fitted to contexts of {plan.scale.context_length} "
        "tokens; means over seeds. The error of the logits is relative to all "
        "of them, and the bound is the least error of a head of this size "
        "(`keras_fixedhead.theory.lowest_error`).",
        _table(rows),
    )


def _trials(plan):
    if not plan.pilots:
        return ()
    rows = []
    for (layers, width), trials in sorted(plan.trials().items()):
        row = {"layers": layers, "width": width}
        for rate in plan.scale.rates:
            nats = _format(trials[rate], ".4f")
            row[f"{rate:g}"] = nats.replace("inf", "not there")
        rows.append(row)
    return (
        "## Learning rates",
        "Nats on the tuning text by the number of layers and the width of all "
        "heads of a layer, from one run each with a seed that is not used "
        "otherwise. A cell's rate is the vertex of the parabola around the "
        "best, interpolated between widths and depths. Runs that learned "
        "nothing are not there; beside one, the best rate is taken itself.",
        _table(rows),
    )


def _table(rows: Sequence[dict]) -> str:
    """Formats rows, which have the same columns, as a table of Markdown."""

    def line(cells):
        cells = [" ".join(str(x).replace("|", "\\|").split()) for x in cells]
        return f"| {' | '.join(cells)} |"

    rule = "|" + "---|" * len(rows[0])
    return "\n".join(
        [line(rows[0]), rule, *(line(row.values()) for row in rows)]
    )


def _format(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else format(value, form)


def _mean(found: list[dict], name: str, form: str, factor: float = 1) -> str:
    """The mean of a metric over the runs that have it."""
    values = [f[name] for f in found if f.get(name) is not None]
    return format(statistics.fmean(values) * factor, form) if values else ""
