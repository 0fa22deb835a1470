"""What the tests of training share: tiny pairs and a tiny run on them."""

import dataclasses
import json
import pathlib

from training.configs import (
    FinetuneConfig,
    ModelConfig,
    RetrievalConfig,
    RunConfig,
    TrainingConfig,
)

WORDS = (
    "red green blue one two three four five small large round square cat dog "
    "bird fish runs sleeps eats flies"
).split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]


def pairs(count=37):
    """Pairs whose documents have three sentences; number 3 is 2 again."""
    made = []
    for i in range(count):
        j = 2 if i == 3 else i
        a, b, c = (WORDS[(j * k) % len(WORDS)] for k in (1, 3, 7))
        made.append(
            {
                "id": f"pair.{i}",
                "query": f"{a} {b}",
                "document": f"{a} {c} runs. {b} {c} sleeps. {c} {a} {b}.",
            }
        )
    return made


def write_data(folder: pathlib.Path) -> pathlib.Path:
    """Writes the part of a data folder that training reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text(
        "".join(f"{json.dumps(pair)}\n" for pair in pairs())
    )
    (folder / "vocabulary.txt").write_text("\n".join(VOCABULARY) + "\n")
    return folder


def config(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run, with fields of any of its parts changed by name."""
    tiny = FinetuneConfig(
        config="tiny",
        model=ModelConfig(
            num_layers=1,
            num_heads=3,
            hidden_dim=11,
            intermediate_dim=19,
            head_size=5,
            max_sequence_length=17,
        ),
        training=TrainingConfig(
            steps=6, global_batch_size=6, learning_rate=0.01, warmup_steps=2
        ),
        retrieval=RetrievalConfig(
            query_length=7, document_length=13, validation_pairs=8
        ),
        run=RunConfig(
            data=data,
            workdir=workdir,
            log_interval=1,
            evaluation_interval=3,
            checkpoint_interval=2,
        ),
    )
    for part in ("model", "training", "retrieval", "run"):
        section = getattr(tiny, part)
        mine = {
            field.name: changes.pop(field.name)
            for field in dataclasses.fields(section)
            if field.name in changes
        }
        tiny = dataclasses.replace(
            tiny, **{part: dataclasses.replace(section, **mine)}
        )
    if changes:
        raise TypeError(f"no such fields: {', '.join(changes)}")
    return tiny


def flags(data, workdir, **changes):
    """The command line of the same run, from the demo's configuration."""
    tiny = config(data, workdir, **changes)
    given = {}
    for part in ("model", "training", "retrieval", "run"):
        given |= dataclasses.asdict(getattr(tiny, part))
    args = ["--config", "demo_retrieval"]
    for name, value in given.items():
        if isinstance(value, bool):
            args.append(f"--{name}" if value else f"--no_{name}")
        else:
            args += [f"--{name}", str(value)]
    return args


def metrics(workdir: pathlib.Path) -> list[dict]:
    """The records of a run, without what differs from time to time."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        record.pop("examples_per_second", None)
    return records
