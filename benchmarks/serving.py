"""What does a smaller embedding cost and save when it is served?

    python -m benchmarks.serving --workdir runs/serving

Exports encoders of named shapes with random weights (the gate checks each),
then serves them side by side and asks them in turn over gRPC. Prints bytes on
disk, seconds to load, milliseconds per request and bytes per embedding, and
beside each its ratio to the first model's. A later call with the same folder
serves what the first one exported.
"""

import contextlib
import dataclasses
import functools
import pathlib
import subprocess
import sys
import time
import typing

import numpy as np

from benchmarks import common
from export import client, local_server
from export.files import card

_LOAD = """
import sys, time
from export import session
start = time.perf_counter()
session.SavedModelSession(sys.argv[1])
print(time.perf_counter() - start)
"""


@dataclasses.dataclass(frozen=True)
class Config:
    workdir: pathlib.Path
    """Folder for the exports."""
    models: tuple[str, ...] = ("fixed_d512_p128_h8", "bert_large_h16")
    """Names of keras_fixedhead.presets, with :DTYPE of the export if wanted."""
    repeats: int = 25


def save_preset(shape: dict[str, typing.Any], folder: pathlib.Path) -> None:
    """Saves an embedder of some backbone arguments; a word is one token."""
    import keras

    import keras_fixedhead
    from keras_fixedhead.tokenizer import SPECIAL_TOKENS

    keras.utils.set_random_seed(0)
    words = shape["vocabulary_size"] - len(SPECIAL_TOKENS)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(
        [*SPECIAL_TOKENS, *(f"w{i}" for i in range(words))]
    )
    keras_fixedhead.FixedHeadTextEmbedder(
        # Embedders pool.
        keras_fixedhead.FixedHeadBackbone(**{**shape, "pooler": False}),
        keras_fixedhead.FixedHeadTextEmbedderPreprocessor(
            tokenizer, sequence_length=shape["max_sequence_length"]
        ),
    ).save_to_preset(str(folder))


def export(
    model: str,
    workdir: pathlib.Path,
    shape: dict[str, typing.Any] | None = None,
) -> pathlib.Path:
    """Returns the folder of versions of a model, exported if need be.

    `shape` are the backbone's arguments, unless `model` names a shape of
    `keras_fixedhead.presets`.
    """
    from keras_fixedhead import presets

    name, _, dtype = model.partition(":")
    versions = workdir / "models" / model.replace(":", "_")
    if not (versions / "1").exists():
        preset = workdir / "presets" / name
        save_preset(shape or presets.shape(name), preset)
        common.export(preset, versions, dtype or "float32")
    return versions


def texts(
    batch_size: int,
    tokens: int,
    random: np.random.Generator,
    words: int = 30_000,
) -> np.ndarray:
    """Returns a batch of texts of so many tokens, [CLS] and [SEP] included."""
    rows = random.integers(0, words, (batch_size, tokens - 2))
    return np.array([" ".join(f"w{word}" for word in row) for row in rows])


def load_seconds(folder: pathlib.Path) -> float:
    command = [sys.executable, "-c", _LOAD, str(folder / "1")]
    return float(subprocess.check_output(command, cwd=common.ROOT))


def main() -> None:
    config = common.parse(Config)
    workdir = config.workdir.resolve()
    folders = [export(model, workdir) for model in config.models]
    cards = [card.load(folder / "1") for folder in folders]
    loads = [[load_seconds(folder) for folder in folders] for _ in range(5)]
    # What is measured: one column per model, then repeats if there are any.
    measured: dict[str, typing.Any] = {
        "parameters, M": [c["parameters"] / 1e6 for c in cards],
        "on disk, MB": [
            sum(f.stat().st_size for f in d.glob("1/**/*") if f.is_file()) / 1e6
            for d in folders
        ],
        "bytes per embedding": [4 * c["embedding_dim"] for c in cards],
        "least cosine to float32": [
            c.get("least_cosine_to_float32", 1) for c in cards
        ],
        "load, s": np.transpose(loads),
    }
    random = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        ready, connections = [], {}
        for folder in folders:
            start = time.perf_counter()
            running = local_server.running(folder.name, folder)
            url = stack.enter_context(running).grpc_url
            ready.append(time.perf_counter() - start)
            connection = client.connect(url, folder.name)
            connections[folder.name] = stack.enter_context(connection)
        measured["ready and warmed up, s"] = ready
        for batch_size, tokens in ((1, 16), (1, 128), (8, 128), (1, 512)):
            inputs = {"text": texts(batch_size, tokens, random)}
            calls = {
                name: functools.partial(connection.predict, inputs)
                for name, connection in connections.items()
            }
            times = common.take_turns(calls, config.repeats)
            name = f"p50 of {batch_size} x {tokens} tokens, ms"
            measured[name] = list(times.values())

    rows = []
    for name, values in measured.items():
        values = np.reshape(values, [len(folders), -1])
        medians = np.median(values, axis=1)
        # Pair by pair: both of a pair met the same noise.
        ratios = np.median(values / values[0], axis=1)
        shown = zip(medians, ratios)
        rows.append([name, *(f"{m:,.4g} ({r:.2f}x)" for m, r in shown)])
    print(common.environment("tensorflow"))
    common.print_table(["", *config.models], rows)


if __name__ == "__main__":
    main()
