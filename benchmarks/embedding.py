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
import os
import pathlib
import re
import subprocess
import typing

import numpy as np

from benchmarks import common
from keras_fixedhead import FixedHeadTextEmbedder
from keras_fixedhead.beir import read_collection

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


def save_preset(config: Config, length: int) -> pathlib.Path:
    folder = config.workdir / f"preset_{length}"
    embedder = FixedHeadTextEmbedder.from_preset(str(config.preset))
    embedder.preprocessor.sequence_length = length
    embedder.save_to_preset(str(folder))
    return folder


def start(config: Config, system: str, length: int) -> subprocess.Popen:
    function, options = _SYSTEMS[system]
    threads = None
    options = {
        "folder": config.source,
        "length": length,
        "batch_size": config.peers_batch_size,
        "threads": len(os.sched_getaffinity(0)),
        "workdir": config.workdir,
        **options,
    }
    if function in ("ours", "onnx_runtime"):
        options["batch_size"] = config.batch_size
    if function in ("ours", "encode_text"):
        folder = save_preset(config, length)
        if function == "ours":
            versions = config.workdir / f"{options['dtype']}_{length}"
            folder = common.export(folder, versions, options["dtype"])
            threads = 1  # of an operation, but a batch for each processor
        options["folder"] = folder
    python = config.peers if function in _PEERS else None
    return common.start_worker(python, function, options, threads)


def measure(
    config: Config, length: int, calls: list[list[str]]
) -> list[list[str]]:
    """A row of the table for each system, which take turns with each call."""
    taken = []
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(start(config, system, length))
            for system in config.systems
        ]
        embeddings = [
            common.embeddings(worker, config.workdir, calls[0])
            for worker in workers
        ]
        for texts in common.progress(calls, "Measuring"):
            taken.append([common.embed(worker, texts) for worker in workers])
    # [calls, systems] -> [systems, calls]
    seconds, idle = np.transpose(taken)
    idle = idle.sum(axis=1) / (seconds.sum() - seconds.sum(axis=1))
    rates = np.array([len(texts) for texts in calls]) / seconds
    return [
        [
            system,
            f"{np.median(rates[i]):.4g}",
            f"{np.median(rates[0] / rates[i]):.2f}",
            f"{(embeddings[0] * embeddings[i]).sum(axis=1).min():.4f}",
            f"{idle[i]:.1%}",
        ]
        for i, system in enumerate(config.systems)
    ]


def main() -> None:
    config = common.parse(Config)
    config = dataclasses.replace(config, workdir=config.workdir.resolve())
    config.workdir.mkdir(parents=True, exist_ok=True)
    embedder = FixedHeadTextEmbedder.from_preset(str(config.preset))
    random = np.random.default_rng(0)
    collection = read_collection(config.collection)
    documents, queries = collection.documents, collection.queries
    sentences = [
        sentence
        for text in documents
        for sentence in re.split(r"(?<=[.?!])\s+", text)
        if len(sentence.split()) > 2
    ]
    print(common.environment("tensorflow", "keras", "keras-hub"))
    ratio = f"{config.systems[0]} / it"
    titles = ["", "texts/s", ratio, "least cosine", "idle"]
    for what, texts, count, length in (
        ("documents", documents, config.documents, config.document_length),
        ("sentences", sentences, config.sentences, config.sentence_length),
        ("queries", queries, config.queries, config.sentence_length),
    ):
        texts = [texts[i] for i in random.permutation(len(texts))[:count]]
        calls = [texts] * config.repeats
        if what == "queries":
            calls = [[text] for text in texts]
        rows = measure(config, length, calls)
        ids = embedder.preprocessor.tokenizer(texts)
        tokens = np.mean([min(len(row) + 2, length) for row in ids])
        print(f"\n{len(texts)} {what}, {tokens:.0f} tokens on average:\n")
        common.print_table(titles, rows)


if __name__ == "__main__":
    main()
