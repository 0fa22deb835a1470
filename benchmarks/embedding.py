"""How many texts a second become embeddings, beside other libraries?

    python -m benchmarks.embedding --preset runs/minilm \
        --source all-MiniLM-L6-v2 --peers runs/peers/bin/python \
        --collection cranfield --workdir runs/embedding

Compares ours (the export in float32 and bfloat16, by TensorFlow's C++),
KerasHub's `BertTextEmbedder`, sentence-transformers and ONNX Runtime, with one
encoder's weights, from text to embedding, on the same processors: the documents
of a BEIR folder, and their sentences. The systems take turns with the same
texts; the others wait. First the embeddings of each are compared to ours.
Prints texts a second, and ratios pair by pair. `--peers` is a Python with
torch, sentence-transformers, onnx, onnxruntime and onnxscript. A later call
with the same work folder reuses the exports of the first.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import typing
from collections.abc import Callable

import numpy as np
from rich.progress import track

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.beir import read_collection

_ROOT = pathlib.Path(__file__).parents[1]
_WORKER = pathlib.Path(__file__).with_name("embedding_worker.py")
# Largest part of a processor that a system may take while it has no turn.
_IDLE = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Systems:
    """The encoder, the texts and the peers."""

    preset: pathlib.Path
    """Preset folder of a text embedder."""
    source: pathlib.Path
    """The Hugging Face folder from which it was converted."""
    peers: pathlib.Path
    """The Python of the peers."""
    collection: pathlib.Path
    """BEIR folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Systems):
    """The encoder, the texts and the peers."""

    workdir: pathlib.Path
    """Folder for the exports."""
    documents: int = 128
    """How many, drawn at random."""
    sentences: int = 512
    document_length: int = 256
    """Tokens of a document; the rest is cut off."""
    sentence_length: int = 128
    """Tokens of a sentence, and what the padded KerasHub pads to."""
    batch_size: int = 16
    """Of ours, a batch for each processor at once, and of ONNX Runtime."""
    peers_batch_size: int = 32
    """Of KerasHub and sentence-transformers."""
    repeats: int = 5


class Worker:
    """A system in its own process."""

    def __init__(
        self,
        python: str | pathlib.Path,
        system: str,
        arguments: dict,
        threads: int,
    ):
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "true",
        }
        self._process = subprocess.Popen(
            [python, _WORKER, system, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.name = system
        self._requests = typing.cast(typing.TextIO, self._process.stdin)
        self._answers = typing.cast(typing.TextIO, self._process.stdout)
        if self._answer() != "ready":
            raise RuntimeError(f"{system} answered before it was asked")

    def _answer(self):
        line = self._answers.readline().strip()
        if not line:
            command = " ".join(map(str, self._process.args))
            raise RuntimeError(f"{self.name} ended. Look why: {command}")
        return line

    def embed(
        self, texts: list[str], output: pathlib.Path | None = None
    ) -> tuple[float, float]:
        """Seconds, and processor seconds since the last answer."""
        request = {"texts": texts, "output": output and str(output)}
        print(json.dumps(request), file=self._requests, flush=True)
        answer = json.loads(self._answer())
        return answer["seconds"], answer["idle"]

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._process.wait()


def export(config: Config, length: int, dtype: str) -> pathlib.Path:
    """The export of the preset that cuts texts at a length."""
    versions = config.workdir / f"{dtype}_{length}"
    if not (versions / "1").exists():
        embedder = FixedHeadTextEmbedder.from_preset(str(config.preset))
        embedder.preprocessor.sequence_length = length
        preset = config.workdir / f"preset_{length}"
        embedder.save_to_preset(str(preset))
        command = (
            *(sys.executable, "-m", "export.saved_model", "--model", preset),
            *("--output", versions, "--version", "1", "--dtype", dtype),
        )
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return versions / "1"


def systems(
    config: Config, length: int, threads: int
) -> dict[str, Callable[[], Worker]]:
    """What starts the `Worker` of each system."""

    def ours(dtype):
        folder, size = export(config, length, dtype), config.batch_size
        arguments = {"folder": str(folder), "batch_size": size}
        # A batch for each processor, and one thread for an operation.
        return functools.partial(
            Worker, sys.executable, "ours", {**arguments, "threads": threads}, 1
        )

    def peer(python, system, **arguments):
        arguments = {
            "folder": str(config.source),
            "length": length,
            "batch_size": config.peers_batch_size,
            **arguments,
        }
        return functools.partial(Worker, python, system, arguments, threads)

    onnx_runtime = functools.partial(
        peer,
        config.peers,
        "onnx_runtime",
        batch_size=config.batch_size,
        workdir=str(config.workdir),
        threads=threads,
    )
    return {
        "ours, float32": ours("float32"),
        "ours, bfloat16": ours("bfloat16"),
        f"KerasHub, padded to {length}": peer(
            sys.executable, "keras_hub", trim=False
        ),
        "KerasHub, sorted and trimmed": peer(
            sys.executable, "keras_hub", trim=True
        ),
        "sentence-transformers": peer(
            config.peers, "sentence_transformers", threads=threads
        ),
        "ONNX Runtime, float32": onnx_runtime(int8=False),
        "ONNX Runtime, int8": onnx_runtime(int8=True),
    }


def compare(
    workers: dict[str, Worker], texts: list[str], output: pathlib.Path
) -> dict[str, float]:
    """The least cosine of each system's embeddings to the first system's."""
    cosines: dict[str, float] = {}
    for name, worker in workers.items():
        worker.embed(texts, output)
        rows = np.load(output)
        if not cosines:
            expected = rows
        cosines[name] = float((rows * expected).sum(axis=1).min())
        whole = "bfloat16" not in name and "int8" not in name
        if whole and cosines[name] < 0.9999:
            raise RuntimeError(
                f"{name} computes something else: the least cosine to "
                f"{next(iter(workers))} is {cosines[name]:.5f}"
            )
    return cosines


def time_turns(
    workers: dict[str, Worker], texts: list[str], repeats: int
) -> dict[str, np.ndarray]:
    """Texts a second `[repeats]` of each system."""
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for _ in track(range(repeats), transient=True):
        seconds, idle = {}, {}
        for name, worker in workers.items():
            seconds[name], idle[name] = worker.embed(texts)
            rates[name].append(len(texts) / seconds[name])
        for name, spun in idle.items():
            others = sum(seconds.values()) - seconds[name]
            if spun > _IDLE * others:
                raise RuntimeError(
                    f"{name} took {spun:.2f} s of a processor in the "
                    f"{others:.1f} s of the others' turns"
                )
    return {name: np.array(row) for name, row in rates.items()}


def describe_lengths(config: Config, texts: list[str], length: int) -> str:
    """How many tokens the texts have, [CLS] and [SEP] included."""
    import tokenizers

    path = str(config.source / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.enable_truncation(length)
    tokenizer.no_padding()
    lengths = [len(row.ids) for row in tokenizer.encode_batch(texts)]
    low, median, high = np.percentile(lengths, [25, 50, 75]).astype(int)
    return (
        f"{np.mean(lengths):.0f} tokens in the mean (quartiles {low}, "
        f"{median}, {high}; {max(lengths)} at most)"
    )


def main() -> None:
    config = common.parse(Config, "embedding", __doc__)
    config = dataclasses.replace(
        config, workdir=config.workdir.resolve(), source=config.source.resolve()
    )
    config.workdir.mkdir(parents=True, exist_ok=True)
    threads = len(os.sched_getaffinity(0))
    random = np.random.default_rng(0)
    documents = read_collection(config.collection).documents
    sentences = [
        sentence
        for text in documents
        for sentence in re.split(r"(?<=[.?!])\s+", text)
        if len(sentence.split()) > 2
    ]
    print(f"{threads} processors")
    for what, texts, number, length in (
        ("documents", documents, config.documents, config.document_length),
        ("sentences", sentences, config.sentences, config.sentence_length),
    ):
        texts = [texts[i] for i in random.permutation(len(texts))[:number]]
        with contextlib.ExitStack() as stack:
            workers = {
                name: stack.enter_context(start())
                for name, start in systems(config, length, threads).items()
            }
            cosines = compare(workers, texts, config.workdir / "embeddings.npy")
            rates = time_turns(workers, texts, config.repeats)
        lengths = describe_lengths(config, texts, length)
        print(f"\n{len(texts)} {what}, {lengths}:\n")
        first = rates["ours, float32"]
        common.print_header("", "texts/s", "ours, float32 / it", "least cosine")
        for name, row in rates.items():
            common.print_row(
                name,
                f"{np.median(row):.0f}",
                f"{np.median(first / row):.2f}",
                f"{cosines[name]:.4f}",
            )
        half = rates["ours, bfloat16"] / rates["ONNX Runtime, int8"]
        print(
            f"\nOurs in bfloat16 / ONNX Runtime in int8: {np.median(half):.2f}"
        )


if __name__ == "__main__":
    main()
