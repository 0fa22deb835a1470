"""What the tests of training share: tiny data and tiny runs on it."""

import dataclasses
import hashlib
import json
import pathlib

import keras
import numpy as np

from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.tokenizer import SPECIAL_TOKENS
from tests import tiny_models
from training.causal_lm.configs import LanguageModelConfig
from training.classification.configs import ClassifyConfig
from training.corpus.squad import Answer, Question
from training.corpus.tokenized import Document, write_shard
from training.distillation.configs import DistillConfig
from training.engine.configs import changed, named_run
from training.masked_lm.configs import PretrainConfig
from training.question_answering.configs import SquadConfig
from training.retrieval.configs import RetrieveConfig
from training.shrink import __main__ as shrink
from training.token_classification.configs import TokenLabelsConfig

WORDS = (
    "red green blue one two three four five small large round square cat dog "
    "bird fish runs sleeps eats flies"
).split()
VOCABULARY = [*SPECIAL_TOKENS, *WORDS, "."]


def pairs(count=37):
    """Pairs whose documents have three sentences; number 3 is 2 again.

    Two of three have documents that do not answer the query, one of them
    that of number 5.
    """

    def texts(number):
        a, b, c = (WORDS[(number * k) % len(WORDS)] for k in (1, 3, 7))
        return f"{a} {b}", f"{a} {c} runs. {b} {c} sleeps. {c} {a} {b}."

    made = []
    for i in range(count):
        j = 2 if i == 3 else i
        query, document = texts(j)
        made.append(
            {
                "id": f"pair.{i}",
                "query": query,
                "document": document,
                "negatives": (texts(5)[1], f"{query} eats.")[: j % 3],
            }
        )
    return made


def _write(folder, files):
    """Writes the text of each file, and the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"vocabulary.txt": "\n".join(VOCABULARY) + "\n", **files}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def write_pairs(folder: pathlib.Path, **changes) -> pathlib.Path:
    """Writes the part of a data folder that training reads."""
    lines = "".join(f"{json.dumps(pair | changes)}\n" for pair in pairs())
    return _write(folder, {"train.jsonl": lines})


def retrieval(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on pairs, with fields of any of its parts changed by name."""
    flags = {"query_length": 7, "document_length": 13, "validation_pairs": 8}
    return _run(RetrieveConfig, data, workdir, flags, changes)


def write_labelled(folder: pathlib.Path, count=60) -> pathlib.Path:
    """Writes pairs with labels to train and to evaluate on, as MNLI's.

    The first word of the second text decides. It is one of eight, and the first
    text begins with any of these.
    """
    rng = np.random.default_rng(11)
    rows = []
    for _ in range(count + 30):
        numbers = rng.integers(0, 8, 2)
        pair = [
            " ".join([WORDS[n], *rng.choice(WORDS[8:], rng.integers(1, 6))])
            for n in numbers
        ]
        rows.append((*pair, "low" if numbers[1] < 4 else "high"))

    def table(mine):
        lines = [("sentence1", "sentence2", "gold_label"), *mine]
        return "".join("\t".join(line) + "\n" for line in lines)

    files = {
        "train.tsv": table(rows[:count]),
        "dev_one.tsv": table(rows[count : count + 19]),
        "dev_two.tsv": table(rows[count + 19 :]),
    }
    return _write(folder, files)


def classification(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on `write_labelled`, with fields of any part changed."""
    flags = {
        "validation": (str(data / "dev_one.tsv"), str(data / "dev_two.tsv")),
        "sequence_length": 17,
        "vocabulary": data / "vocabulary.txt",
    }
    return _run(ClassifyConfig, data / "train.tsv", workdir, flags, changes)


def write_labelled_words(folder: pathlib.Path) -> pathlib.Path:
    """Writes sentences in which two of eight words are of an entity."""
    rng = np.random.default_rng(7)

    def sentences(count):
        lines = []
        for _ in range(count):
            inside = False
            for number in rng.integers(0, 8, rng.integers(1, 9)):
                label = "O" if number > 1 else "I-x" if inside else "B-x"
                inside = number < 2
                lines.append(f"{WORDS[number]}\t{label}\n")
            lines.append("\n")
        return "".join(lines)

    files = {"train.conll": sentences(200), "dev.conll": sentences(31)}
    return _write(folder, files)


def token_labels(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on `write_labelled_words`, with fields of any part changed."""
    flags = {
        "validation": str(data / "dev.conll"),
        "sequence_length": 9,  # most sentences fit
        "vocabulary": data / "vocabulary.txt",
    }
    data = data / "train.conll"
    return _run(TokenLabelsConfig, data, workdir, flags, changes)


def questions(count=32) -> list[Question]:
    """Questions of three words, contexts of some windows, and answers."""
    rng = np.random.default_rng(13)
    made = []
    for number in range(count):
        words = rng.choice(WORDS, rng.integers(7, 19)).tolist()
        first = int(rng.integers(0, len(words)))
        last = int(rng.integers(first, min(first + 3, len(words))))
        answer = " ".join(words[first : last + 1])
        start = len(" ".join([*words[:first], ""]))
        made.append(
            Question(
                f"question.{number}",
                " ".join(WORDS[(number * k + k) % 19] for k in (1, 3, 7)),
                " ".join(words),
                (Answer(answer, start),),
            )
        )
    return made


def write_squad(folder: pathlib.Path, count=32) -> pathlib.Path:
    """Writes questions to train and to evaluate on, as SQuAD's."""
    made = questions(count + 7)

    def paragraphs(mine):
        found = []
        for one in mine:
            (answer,) = one.answers
            answers = [{"text": answer.text, "answer_start": answer.start}]
            asked = {"id": one.id, "question": one.question, "answers": answers}
            found.append({"context": one.context, "qas": [asked]})
        return json.dumps({"data": [{"title": "", "paragraphs": found}]})

    files = {
        "train.json": paragraphs(made[:count]),
        "dev.json": paragraphs(made[count:]),
    }
    return _write(folder, files)


def squad(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on `write_squad`, with fields of any part changed."""
    flags = {
        "validation": str(data / "dev.json"),
        "sequence_length": 17,
        "document_stride": 5,
        "max_question_length": 4,
        "vocabulary": data / "vocabulary.txt",
    }
    return _run(SquadConfig, data / "train.json", workdir, flags, changes)


def rewrite(folder: pathlib.Path, **changes):
    """Changes the manifest of a data folder."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _run(kind, data, workdir, flags, changes):
    tiny = {
        "config": "tiny",
        "data": data,
        "workdir": workdir,
        "num_layers": 1,
        "num_heads": 3,
        "hidden_dim": 11,
        "intermediate_dim": 19,
        "head_size": 5,
        "max_sequence_length": 17,
        "steps": 6,
        "global_batch_size": 6,
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "log_interval": 1,
        "evaluation_interval": 3,
        "checkpoint_interval": 2,
    }
    return changed(named_run(kind, **tiny | flags), **changes)


def values(config) -> dict:
    """The values of a run's flags, by name."""
    given = {}
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            given |= dataclasses.asdict(part)
    return given


def flags(config, named):
    """The command line of a run, from one of the named configurations."""
    args = ["--config", named]
    for name, value in values(config).items():
        if isinstance(value, bool):
            args.append(f"--{name}" if value else f"--no_{name}")
        elif isinstance(value, tuple):
            args += [f"--{name}", *map(str, value)]
        else:
            args += [f"--{name}", str(value)]
    return args


def write_text(folder: pathlib.Path) -> pathlib.Path:
    """Writes a data folder of documents, ten of them in each of two shards.

    Every line begins with a word that the whole document has in common, so
    that there is something to learn.
    """
    rng = np.random.default_rng(3)
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    words = np.array([ids[word] for word in WORDS])

    def document(number):
        lines = []
        for _ in range(rng.integers(1, 5)):
            line = rng.choice(words, rng.integers(3, 11))
            line[::3] = words[number % len(words)]
            lines.append(line)
        return Document(np.concatenate(lines), [len(line) for line in lines])

    shards = {"train-00000": 0, "train-00001": 10, "heldout-00000": 0}
    return write_shards(
        folder,
        {
            name: [document(first + number) for number in range(10)]
            for name, first in shards.items()
        },
    )


def write_shards(folder, shards, vocabulary=VOCABULARY, lowercase=True):
    """Writes a data folder of shards, documents by name."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {"train": [], "heldout": []}
    for name, documents in shards.items():
        entry = write_shard(folder, name, documents)
        entries[name.partition("-")[0]].append(with_words(entry))
    tokens = "".join(f"{token}\n" for token in vocabulary).encode()
    (folder / "vocabulary.txt").write_bytes(tokens)
    manifest = {
        "kind": "text",
        "arguments": {"lowercase": lowercase},
        "vocabulary_sha256": hashlib.sha256(tokens).hexdigest(),
        "shards": entries,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def with_words(entry: dict) -> dict:
    """The entry of a shard's manifest, with as many words as tokens."""
    return entry | {"words": entry["tokens"]}


def pretraining(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on text, with fields of any of its parts changed by name."""
    flags = {"head_size": 17, "sequence_length": 17, "max_predictions": 3}
    flags |= {"evaluation_examples": 8}
    return _run(PretrainConfig, data, workdir, flags, changes)


def language_model(data: pathlib.Path, workdir: pathlib.Path, **changes):
    """A tiny run on text, with fields of any of its parts changed by name."""
    flags = {"head_size": 13, "sequence_length": 13, "evaluation_examples": 8}
    return _run(LanguageModelConfig, data, workdir, flags, changes)


def texts(count=43) -> list[str]:
    """Different texts, of one word to more than an encoder here takes."""
    rng = np.random.default_rng(5)
    return [
        f"{WORDS[i % 7]} " + " ".join(rng.choice(WORDS, 1 + i * 7 % 19))
        for i in range(count)
    ]


def write_texts(path: pathlib.Path) -> pathlib.Path:
    """Writes texts, one a line."""
    path.write_text("".join(f"{text}\n" for text in texts()))
    return path


def embedder(seed=0, prompts=None, pooling_mode="cls", dtype=None):
    """A model whose heads are as wide together as thrice those of runs."""
    keras.utils.set_random_seed(seed)
    model = tiny_models.new_task(
        FixedHeadTextEmbedder,
        VOCABULARY,
        backbone={
            "num_heads": 5,
            "hidden_dim": 13,
            "head_size": 9,
            "max_sequence_length": 19,
            "dtype": dtype,
        },
        preprocessor={"sequence_length": 17, "prompts": prompts},
        pooling_mode=pooling_mode,
    )
    for block in model.backbone.transformer_layers:
        for name in ("query", "key", "value", "attention_output"):
            # As drawn, it would attend to all alike and embed all alike.
            kernel = getattr(block.attention, name).kernel
            kernel.assign(10 * kernel.value)
    return model


def write_shrunk(folder: pathlib.Path, *words, **options) -> pathlib.Path:
    """Writes texts, a teacher, and the encoder that it is shrunk to."""
    folder.mkdir(parents=True, exist_ok=True)
    texts, teacher = folder / "texts.txt", folder / "teacher"
    write_texts(texts)
    embedder(**options).save_to_preset(str(teacher))
    words += ("--source", str(teacher), "--calibration", str(texts))
    words += ("--output", str(folder / "init"), "--hidden_dim", "7")
    words += ("--num_layers", "1", "--heldout_texts", "0")
    assert shrink.main(words) == 0
    return folder


def distillation(data, teacher, workdir: pathlib.Path, **changes):
    """A tiny run on texts, with fields of any of its parts changed by name."""
    flags = {"teacher": teacher, "sequence_length": 13, "validation_texts": 7}
    return _run(DistillConfig, data, workdir, flags, changes)


def metrics(workdir: pathlib.Path) -> list[dict]:
    """The records of a run, without what differs from time to time."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [
        {
            name: value
            for name, value in record.items()
            if not name.endswith(("per_second", "utilization"))
        }
        for record in records
    ]


def error(capsys) -> str:
    """The one line of an error, the last on standard error."""
    *before, line = capsys.readouterr().err.splitlines()
    assert ": error: " in line
    assert not [said for said in before if ": error: " in said]
    return line


def newest_step(folder: pathlib.Path) -> int | None:
    """The update after which the newest checkpoint was written, if any."""
    steps = [path.stem.removeprefix("ckpt-") for path in folder.glob("*.index")]
    return max((int(s) for s in steps if s.isdigit()), default=None)
