"""How many texts a second become embeddings, beside other libraries?

    python -m benchmarks.embedding --preset runs/minilm \
        --source all-MiniLM-L6-v2 --peers runs/peers/bin/python \
        --collection cranfield --workdir runs/embedding

Compares ours (the export in float32 and bfloat16, by TensorFlow's C++, and
`encode_text`), KerasHub's `BertTextEmbedder`, sentence-transformers and ONNX
Runtime, with one encoder's weights, from text to embedding, on the same
processors: the documents of a BEIR folder, their sentences, and its queries,
one at a time. The systems take turns with the same texts; the others wait.
Prints texts a second, ratios pair by pair, the least cosine of a system's
embeddings to the first one's, and the part of a processor that a system took
in the turns of others. `--peers` is a Python with torch,
sentence-transformers, onnx, onnxruntime and onnxscript. A later call with the
same work folder reuses the exports of the first.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import typing

import numpy as np

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.beir import read_collection

_ROOT = pathlib.Path(__file__).parents[1]
# The worker's function and its own options.
_SYSTEMS: dict[str, tuple[str, dict[str, typing.Any]]] = {
    "ours, float32": ("ours", {"dtype": "float32"}),
    "ours, bfloat16": ("ours", {"dtype": "bfloat16"}),
    "ours, encode_text": ("encode_text", {}),
    "KerasHub, padded": ("keras_hub", {"trim": False}),
    "KerasHub, sorted and trimmed": ("keras_hub", {"trim": True}),
    "sentence-transformers": ("sentence_transformers", {}),
    "ONNX Runtime, float32": ("onnx_runtime", {"int8": False}),
    "ONNX Runtime, int8": ("onnx_runtime", {"int8": True}),
}
_PEERS = ("sentence_transformers", "onnx_runtime")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The encoder, the texts and the peers."""

    preset: pathlib.Path
    """Preset folder of a text embedder."""
    source: pathlib.Path
    """The Hugging Face folder from which it was converted."""
    peers: pathlib.Path
    """The Python of sentence-transformers and ONNX Runtime."""
    collection: pathlib.Path
    """BEIR folder."""
    workdir: pathlib.Path
    """Folder for the exports."""
    systems: tuple[str, ...] = tuple(_SYSTEMS)
    """Rows of the table; the others are compared to the first."""
    documents: int = 128
    """How many, drawn at random."""
    sentences: int = 512
    queries: int = 60
    document_length: int = 256
    """Tokens of a document; the rest is cut off."""
    sentence_length: int = 128
    """Tokens of a sentence or query, and what the padded KerasHub pads to."""
    batch_size: int = 16
    """Of our export, a batch for each processor at once, and of ONNX
    Runtime."""
    peers_batch_size: int = 32
    """Of KerasHub and sentence-transformers."""
    repeats: int = 5


def export(config: Config, length: int, dtype: str) -> pathlib.Path:
    """The export of the preset that cuts texts at a length."""
    versions = config.workdir / f"{dtype}_{length}"
    if not (versions / "1").exists():
        command = (
            *(sys.executable, "-m", "export.saved_model", "--dtype", dtype),
            *("--model", preset(config, length)),
            *("--output", versions, "--version", "1"),
        )
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return versions / "1"


def preset(config: Config, length: int) -> pathlib.Path:
    """The preset, cutting texts at a length."""
    folder = config.workdir / f"preset_{length}"
    embedder = FixedHeadTextEmbedder.from_preset(str(config.preset))
    embedder.preprocessor.sequence_length = length
    embedder.save_to_preset(str(folder))
    return folder


class Worker:
    """A system in its own process."""

    def __init__(self, config: Config, system: str, length: int):
        self.output = config.workdir / "embeddings.npy"
        function, options = _SYSTEMS[system]
        threads = len(os.sched_getaffinity(0))
        options = {
            "folder": str(config.source),
            "length": length,
            "batch_size": config.peers_batch_size,
            "threads": threads,
            "workdir": str(config.workdir),
            "output": str(self.output),
            **options,
        }
        if function in ("ours", "onnx_runtime"):
            options["batch_size"] = config.batch_size
        if function == "ours":
            options["folder"] = str(export(config, length, options["dtype"]))
            threads = 1  # of an operation, but a batch for each processor
        if function == "encode_text":
            options["folder"] = str(preset(config, length))
        self._process = subprocess.Popen(
            [
                config.peers if function in _PEERS else sys.executable,
                _ROOT / "benchmarks" / "embedding_worker.py",
                *(function, json.dumps(options)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(_ROOT),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_NUM_INTRAOP_THREADS": str(threads),
                "OMP_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "true",
            },
        )
        self._requests = typing.cast(typing.TextIO, self._process.stdin)
        self._answers = typing.cast(typing.TextIO, self._process.stdout)

    def embed(self, texts: list[str]) -> tuple[float, float]:
        """Seconds, and processor seconds since the last answer."""
        print(json.dumps(texts), file=self._requests, flush=True)
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"a system ended: {self._process.args!r}")
        seconds, idle = json.loads(line)
        return seconds, idle

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._process.wait()


def measure(
    config: Config, length: int, calls: list[list[str]]
) -> list[list[object]]:
    """A row of the table for each system, which take turns with each call."""
    seconds = np.zeros((len(config.systems), len(calls)))
    idle = np.zeros_like(seconds)
    embeddings = []
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(config, system, length))
            for system in config.systems
        ]
        for worker in workers:
            worker.embed(calls[0])
            embeddings.append(np.load(worker.output))
        for call, texts in enumerate(common.progress(calls, "Measuring")):
            for i, worker in enumerate(workers):
                seconds[i, call], idle[i, call] = worker.embed(texts)
    others = seconds.sum() - seconds.sum(axis=1)
    rates = np.array([len(texts) for texts in calls]) / seconds
    return [
        [
            system,
            f"{np.median(rates[i]):.4g}",
            f"{np.median(rates[0] / rates[i]):.2f}",
            f"{(embeddings[0] * embeddings[i]).sum(axis=1).min():.4f}",
            f"{idle[i].sum() / others[i]:.1%}",
        ]
        for i, system in enumerate(config.systems)
    ]


def main() -> None:
    config = common.parse(Config)
    config = dataclasses.replace(
        config, workdir=config.workdir.resolve(), source=config.source.resolve()
    )
    config.workdir.mkdir(parents=True, exist_ok=True)
    embedder = FixedHeadTextEmbedder.from_preset(str(config.preset))
    tokenizer = embedder.preprocessor.tokenizer
    random = np.random.default_rng(0)
    collection = read_collection(config.collection)
    sentences = [
        sentence
        for text in collection.documents
        for sentence in re.split(r"(?<=[.?!])\s+", text)
        if len(sentence.split()) > 2
    ]
    print(common.environment("tensorflow", "keras", "keras-hub"))
    for what, texts, count, length in (
        (
            "documents",
            collection.documents,
            config.documents,
            config.document_length,
        ),
        ("sentences", sentences, config.sentences, config.sentence_length),
        ("queries", collection.queries, config.queries, config.sentence_length),
    ):
        texts = [texts[i] for i in random.permutation(len(texts))[:count]]
        calls = [texts] * config.repeats
        if what == "queries":
            calls = [[text] for text in texts]
        rows = measure(config, length, calls)
        tokens = np.minimum(tokenizer(texts).row_lengths() + 2, length)
        print(f"\n{len(texts)} {what}, {tokens.mean():.0f} tokens each:\n")
        common.print_table(
            [
                "",
                "texts/s",
                f"{config.systems[0]} / it",
                "least cosine",
                "idle",
            ],
            rows,
        )


if __name__ == "__main__":
    main()
