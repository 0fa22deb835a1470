"""What does a smaller embedding cost and save when it is served?

    python -m benchmarks.serving --workdir runs/serving

Exports encoders of named shapes with random weights (the gate checks each),
then serves them side by side and asks them in turn over gRPC. Prints bytes on
disk, seconds to load, milliseconds per request and bytes per embedding, and
beside each its ratio to the first model's. A model is a name of
`keras_fixedhead.presets`, with a `:dtype` of the export if wanted. A later
call with the same folder serves what the first one exported.
"""

import argparse
import contextlib
import pathlib
import platform
import subprocess
import sys
import time

import numpy as np

from export import client, local_server
from export.files import card

ROOT = pathlib.Path(__file__).parents[1]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LOAD = """
import sys, time
from export import session
start = time.perf_counter()
session.SavedModelSession(sys.argv[1])
print(time.perf_counter() - start)
"""


def python(*words):
    """Runs Python in the clone; returns what it prints."""
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def save_preset(shape, folder):
    """Saves an embedder; every word is one token.

    `shape` is a name of `keras_fixedhead.presets`, or backbone arguments.
    """
    import keras

    import keras_fixedhead
    from keras_fixedhead import presets

    keras.utils.set_random_seed(0)
    if isinstance(shape, str):
        shape = presets.shape(shape)
    shape = {**shape, "pooler": False}  # embedders pool
    words = shape["vocabulary_size"] - len(SPECIAL)
    tokenizer = keras_fixedhead.FixedHeadTokenizer(
        [*SPECIAL, *(f"w{i}" for i in range(words))]
    )
    keras_fixedhead.FixedHeadTextEmbedder(
        keras_fixedhead.FixedHeadBackbone(**shape),
        keras_fixedhead.FixedHeadTextEmbedderPreprocessor(
            tokenizer, sequence_length=shape["max_sequence_length"]
        ),
    ).save_to_preset(str(folder))


def export(model, workdir, shape=None):
    """Returns the folder of versions of a model, exported if need be.

    `shape` are the backbone's arguments, if `model` is no name of a shape.
    """
    name, _, dtype = model.partition(":")
    versions = workdir / "models" / model.replace(":", "_")
    if not (versions / "1").exists():
        preset = workdir / "presets" / name
        if not (preset / "task.json").exists():
            print(f"{name}: making the preset", flush=True)
            save_preset(shape or name, preset)
        print(f"{model}: exporting", flush=True)
        words = ["--model", str(preset), "--output", str(versions)]
        if dtype:
            words += ["--dtype", dtype]
        print(python("-m", "export.saved_model", *words, "--version", "1"))
    return versions


def texts(batch_size, tokens, random, words=30_000):
    """Returns a batch of texts of so many tokens, [CLS] and [SEP] included."""
    words = random.integers(0, words, (batch_size, tokens - 2))
    return np.array([" ".join(f"w{word}" for word in row) for row in words])


def milliseconds(connections, batch, repeats):
    """Asks the servers in turn; returns `[servers, repeats]` milliseconds."""
    times = []
    for repeat in range(-2, repeats):  # two to warm up
        row = []
        for connection in connections:
            start = time.perf_counter()
            connection.predict({"text": batch})
            row.append((time.perf_counter() - start) * 1e3)
        if repeat >= 0:
            times.append(row)
    return np.array(times).T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="SHAPE[:DTYPE]",
        default=["fixed_d512_p128_h8", "bert_large_h16"],
    )
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()
    args.workdir = args.workdir.resolve()

    folders = [export(model, args.workdir) for model in args.models]
    cards = [card.load(folder / "1") for folder in folders]
    loads = [
        [float(python("-c", LOAD, str(folder / "1"))) for folder in folders]
        for _ in range(5)
    ]
    # What is measured: one column per model, then repeats if there are any.
    rows = {
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
        ready, connections = [], []
        for folder in folders:
            start = time.perf_counter()
            running = local_server.running(folder.name, folder)
            url = stack.enter_context(running).grpc_url
            ready.append(time.perf_counter() - start)
            connection = client.connect(url, folder.name)
            connections.append(stack.enter_context(connection))
        rows["ready and warmed up, s"] = ready
        for batch_size, tokens in ((1, 16), (1, 128), (8, 128), (1, 512)):
            rows[f"p50 of {batch_size} x {tokens} tokens, ms"] = milliseconds(
                connections, texts(batch_size, tokens, random), args.repeats
            )

    print(platform.processor() or platform.machine())
    print(f"| | {' | '.join(args.models)} |")
    print("|---" * (1 + len(args.models)) + "|")
    for name, values in rows.items():
        values = np.reshape(values, [len(args.models), -1])
        medians = np.median(values, axis=1)
        # Pair by pair: both of a pair met the same noise.
        ratios = np.median(values / values[0], axis=1)
        shown = [
            f"{median:,.4g} ({ratio:.2f}x)"
            for median, ratio in zip(medians, ratios)
        ]
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
