"""The report, of records as runs write them."""

import numpy as np
import pytest

from keras_fixedhead.files import write_json
from training.corpus.folder import Stream
from training.reproduce.cells import SCALES
from training.reproduce.plan import Plan
from training.reproduce.report import write_report
from training.reproduce.runner import record_failure

COUNTS = {
    "train tokens": 1009,
    "test tokens": 101,
    "tokens in the vocabulary": 29,
}


def metrics(run, rng):
    """Those of a run; the more layers and heads, the fewer nats."""
    if run.cell.contexts:
        sizes = Plan(SCALES["cpu"], None).scale.context_head_sizes
        missed = 1.0 if run.cell.contexts == "dense" else 0.25
        found = {"seconds": 1.0}
        for n in sizes:
            found |= {f"kl_{n}": missed / n, f"log_error_{n}": 0.5}
            found[f"bound_{n}"] = 0.25
        return found
    width = run.cell.width * run.cell.shape["num_layers"]
    return {
        "parameters": 1000 * width,
        "flops": 3000 * width,
        "nats": 5 - 0.1 * np.log2(width) + 0.001 * rng.standard_normal(),
        "logit_effective_rank": 3.0,
        "attention_effective_rank": 4.0,
        "log_condition_number": None if run.seed == 1 else 7.0,
        "seconds": 1800.0,
    }


@pytest.fixture
def plan(tmp_path):
    """All runs are made, but one that failed."""
    plan = Plan(SCALES["cpu"], tmp_path)
    rng = np.random.default_rng(5)
    failed, *made = [*plan.pilots, *plan.runs]
    for run in made:
        folder = plan.folder(run)
        folder.mkdir(parents=True)
        record = {
            "cell": run.cell.name,
            "seed": run.seed,
            "rate": run.rate or 4e-3,
            "figures": metrics(run, rng),
            "finished": f"2026-01-0{1 + run.seed}T00:00:00+00:00",
            "versions": {"keras": "3"},
            "hardware": "2 CPU of some kind",
        }
        write_json(folder / "record.json", record)
    record_failure(plan.folder(failed), "its process | was killed by SIGKILL")
    return plan


def test_a_report_of_all_runs(plan, tmp_path, drawn):
    write_report(plan, "cpu", Stream(29, "", COUNTS, {}))
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    for said in (
        "72 of 72 runs are made. 2026-01-02 to 2026-01-04; keras 3; each run",
        "That deviation is 0.0009 nats (42 degrees of freedom; 0.0060 was",
        "1,009 word pieces of 29 kinds, tested on 101.",
        "improves. | Fig. 3(a), Table 2(A) | **reproduced** |  |",
        "3(a) | **not reproduced** | no such difference seen in 2 of 2 comp",
        "![language.png](language.png)\n\n![contexts.png](contexts.png)",
        "heads_x2 under standard | -0.0991 ± 0.0019 | 3 | 0.0175 | yes |",
        "by less than 0.02 more | +0.0765 ± 0.0019 | 3 | 0.0175 | no: the opp",
        "d / h | 2 | 64 | 4 x 16 | 256 | 128 | 384 | 0.004 | 4.2983 4.2999 4",
        " | 73.63 | 3.0 | 4.0 | 7.0 |",
        "\n| 63 | 0.0159 | 0.5000 | 0.2500 | 0.0040 | 0.5000 | 0.2500 |\n",
        "\n| 2 | 64 | not there | 4.",
        "| rates/standard/0.00283 | its process \\| was killed by SIGKILL |",
    ):
        assert said in written, said
    language, contexts = drawn
    *_, controls = language.axes
    labels = [label.get_text() for label in controls.get_yticklabels()]
    names = [label.partition("\n")[0] for label in labels]
    assert names == [
        "16 heads of 16",
        "feed-forward of 13 d",
        "4 layers",
        "d = 90, 6 heads of 15",
        "6 layers",
        "d = 112, 7 heads of 16",
    ]
    assert "perplexity by -25.9% with heads of 16" in language.get_suptitle()
    assert contexts.get_suptitle() == (
        "For 64 tokens, dense contexts need heads of 32, one-hot contexts need "
        "heads of 8 (divergence below 0.05 nats)"
    )


def test_a_report_without_runs(tmp_path):
    plan = Plan(SCALES["paper"], tmp_path)
    record_failure(plan.folder(plan.runs[0]), "killed")
    write_report(plan, "paper", Stream(29, "", COUNTS, {}))
    written = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "0 of 72 runs are made." in written and "png" not in written
    assert "There are too few runs" in written
    assert "## Learning rates" not in written
    assert "| 1 failed |" in written
