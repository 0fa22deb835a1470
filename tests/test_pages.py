"""Every command and every Python line of the guides runs, one page a test.

The pages share a folder, as a reader's clone: later ones use what earlier ones
made. A tiny BERT stands for MiniLM, the guides' own text for a corpus, and runs
are cut to a few updates. Commands of `git`, `make`, `pip` and of a cluster run
elsewhere. `results.md` is left out: it records runs on data that is not here.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from keras_fixedhead import FixedHeadTextEmbedder, convert
from tests.tiny_models import new_task, new_vocabulary

ROOT = pathlib.Path(__file__).parents[1]
# In the order in which a reader makes what the next page uses.
PAGES = (
    "docs/quick_start.md",
    "docs/stack_the_layer.md",
    "docs/convert_and_shrink.md",
    "docs/retrieval.md",
    "docs/serving.md",
    "docs/fine_tuning.md",
    "docs/pre_training.md",
    "docs/how_it_works.md",
    "docs/language_models.md",
    "docs/choosing_a_shape.md",
    "docs/benchmarks.md",
    "docs/migration.md",
    "README.md",
)
RUN_ELSEWHERE = ("git ", "make", "pip ", "cd ", ". ")
STEPS = (
    " --steps 4 --warmup_steps 1 --log_interval 2 --evaluation_interval 4"
    " --checkpoint_interval 4"
)
SHORTER = {
    "training.finetune": STEPS + " --global_batch_size 4",
    "training.pretrain": STEPS + " --global_batch_size 4",
    "training.language_model": STEPS + " --global_batch_size 4",
    "training.distill": STEPS + " --global_batch_size 8 --validation_texts 9",
    "retrieval": " --validation_pairs 8",
    "compact_retrieval": " --validation_pairs 8",
    "paper_stage1": " --num_layers 2 --hidden_dim 64 --intermediate_dim 64",
    "training.shrink": " --calibration_tokens 2000",
    "training.reproduce": " --minutes 0.1",
    "export.search": " --query medicine",  # else it prompts
}


def blocks(page):
    """The commands and the Python blocks of a page, in its order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, block in re.findall(
        r"```(bash|python)\n(.*?)```", text, re.S
    ):
        if language == "python":
            yield "python", block
            continue
        for line in re.sub(r" *\\\n *", " ", block).splitlines():
            line = line.split("  #")[0].strip()
            if line and not line.startswith(RUN_ELSEWHERE):
                yield "bash", line


def sentences():
    for page in sorted((ROOT / "docs").glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            if len(line.split()) > 8 and line[0].isalpha():
                yield line


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_squad(path, texts):
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": f"{path.stem}_{i}",
                    "question": f"What is {i} in {path.stem}?",
                    "answers": [{"text": text.split()[0], "answer_start": 0}],
                }
            ],
        }
        for i, text in enumerate(texts)
    ]
    data = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data), encoding="utf-8")


def write_collection(folder, texts):
    rows = [{"_id": str(i), "text": text} for i, text in enumerate(texts)]
    queries = [{**row, "text": row["text"][:40]} for row in rows[:7]]
    write_lines(folder / "corpus.jsonl", map(json.dumps, rows))
    write_lines(folder / "queries.jsonl", map(json.dumps, queries))
    judged = [f"{row['_id']}\t{row['_id']}\t1" for row in queries]
    write_lines(
        folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged]
    )


def write_minilm(folder, texts):
    words = {word for text in texts for word in re.findall("[a-z]+", text)}
    sizes = {
        "num_layers": 6,
        "num_heads": 12,
        "hidden_dim": 384,
        "intermediate_dim": 96,
        "head_size": 32,
        "max_sequence_length": 512,
    }
    embedder = new_task(
        FixedHeadTextEmbedder,
        new_vocabulary(sorted(word for word in words if len(word) > 1)),
        backbone=sizes,
        preprocessor={"sequence_length": 128},
    )
    convert.to_hugging_face(embedder, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the pages presuppose: data, a public encoder, and `make demo`."""
    folder = tmp_path_factory.mktemp("pages")
    texts = list(sentences())
    for name in ("texts.txt", "news.txt", "vocab_source.txt"):
        write_lines(folder / name, texts[:200])
    for number in range(60):
        for name in (
            f"novels/{number}.txt",
            f"1b/training-mono/news.en-000{number:02}-of-60",
            f"1b/heldout-mono/news.en.heldout-00000-of-{number:02}",
        ):
            write_lines(folder / name, texts[number::60])
    write_squad(folder / "train-v1.1.json", texts[:60])
    write_squad(folder / "dev-v1.1.json", texts[60:180])
    collections = (
        "beir",
        "cranfield",
        "cisi",
        "medline",
        "runs/demo/data/heldout",
    )
    for name in collections:
        write_collection(folder / name, texts[:300])
    shutil.copy(folder / "beir" / "corpus.jsonl", folder)
    header = "sentence1\tsentence2\tgold_label"
    pairs = [
        f"{a}\t{b}\t{label}"
        for a, b, label in zip(
            texts, texts[1:49], ["entailment", "neutral", "contradiction"] * 16
        )
    ]
    for name in ("train", "dev_matched", "dev_mismatched"):
        write_lines(folder / "MNLI" / f"{name}.tsv", [header, *pairs])
    write_lines(folder / "test.tsv", [header, *pairs])
    words = "Edwin\tB-person\nsleeps\tO\n\n" * 20
    for name in ("train", "dev", "test"):
        write_lines(folder / "wnut17" / f"{name}.conll", [words])
    write_minilm(folder / "all-MiniLM-L6-v2", texts)
    embedder = convert.from_hugging_face(folder / "all-MiniLM-L6-v2")
    embedder.save_to_preset(str(folder / "runs" / "demo" / "train" / "preset"))
    for command in (
        "python -m export.saved_model --model runs/demo/train/preset"
        " --output runs/demo/models/docstrings",
        "python -m export.index --corpus corpus.jsonl --output runs/demo/index"
        " --saved_model runs/demo/models/docstrings",
    ):
        run(command, folder)
    return folder


def start(command, folder):
    """Starts a command as a reader's shell does, with this Python."""
    command = command.replace("python ", f"{sys.executable} ")
    command = command.replace("sentence-transformers/", "")
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        executable="/bin/bash",
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(command, folder):
    """Runs a command, cut short, from the start."""
    for output in re.findall(r"--(?:output|workdir) (\S+)", command):
        if (folder / output).is_dir():
            shutil.rmtree(folder / output)
    names = re.findall(r"(?:-m|--config) (\S+)", command)
    shorter = "".join(SHORTER.get(name, "") for name in names)
    process = start(command + shorter, folder)
    output, _ = process.communicate()
    assert not process.returncode, f"{command}\n{output[-3000:]}"


def wait_for_server(deadline=60.0):
    ends = time.monotonic() + deadline
    while time.monotonic() < ends:
        try:
            urllib.request.urlopen("http://127.0.0.1:8501/", timeout=1)
        except urllib.error.HTTPError:
            return  # It answers.
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"no server on port 8501 after {deadline:g} s")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
# A reader sees warnings; they are not what is tested here.
@pytest.mark.filterwarnings("default")
def test_page(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    servers, namespace = [], {}
    try:
        for language, block in blocks(page):
            if language == "python":
                exec(block, namespace)
            elif block.endswith("&"):
                servers.append(start(f"exec {block[:-1]}", folder))
                wait_for_server()
            elif "tfds:" not in block:  # It would download.
                run(block, folder)
    finally:
        for server in servers:
            server.terminate()
            server.communicate()


def test_every_guide_is_run():
    found = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    no_commands = {
        f"docs/{name}.md"
        for name in ("index", "install", "contribute", "changelog", "releasing")
    }
    elsewhere = {"docs/results.md", "docs/launch.md", "docs/deploy.md"}
    assert found == {*PAGES, *no_commands, *elsewhere} - {"README.md"}
