"""One system that embeds texts, in a process of its own.

    python embedding_worker.py SYSTEM ARGUMENTS

`benchmarks.embedding` starts it with the Python that has the system's packages:
PyTorch beside TensorFlow in one process may crash, and TensorFlow's threads are
one setting per process. ARGUMENTS is a JSON object of the system's arguments.
Each line of standard input is a JSON object with `texts` to embed and `output`,
where to save them as float32 `[N, D]`, or null. The answer is a JSON object on
a line: `seconds`, and `idle`, the seconds of processor time between the
previous answer and this request.
"""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np

# Embeds texts, float [N, D].
Embed = Callable[[list[str]], np.ndarray]
_OPEN = contextlib.ExitStack()  # until the process ends


def in_batches(texts: list[str], batch_size: int, embed: Embed) -> np.ndarray:
    """The rows `[N, D]` that `embed` makes of batches of texts."""
    starts = range(0, len(texts), batch_size)
    return np.concatenate(
        [embed(texts[start : start + batch_size]) for start in starts]
    )


def by_length(texts: list[str], batch_size: int, embed: Embed) -> np.ndarray:
    """Embeds batches of similar lengths, the longest first; `[N, D]`."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    rows = in_batches([texts[i] for i in order], batch_size, embed)
    return rows[np.argsort(order)]


def ours(folder: str, batch_size: int, threads: int) -> Embed:
    """An export, as `export.index` embeds with it."""
    from export import model_source

    source = model_source.Source(
        saved_model=pathlib.Path(folder), batch_size=batch_size, threads=threads
    )
    opened = _OPEN.enter_context(source.open())
    return lambda texts: opened.embed(texts, "document")


def encode_text(folder: str) -> Embed:
    """`FixedHeadTextEmbedder.encode_text` of a preset."""
    from keras_fixedhead import FixedHeadTextEmbedder

    embedder = FixedHeadTextEmbedder.from_preset(folder)
    return lambda texts: embedder.encode_text(texts, verbose=0)


def keras_hub(folder: str, length: int, batch_size: int, trim: bool) -> Embed:
    """KerasHub's own embedder, padded to `length` or to the longest."""
    import functools

    import keras
    import keras_hub
    import tensorflow as tf

    embedder = keras_hub.models.BertTextEmbedder.from_preset(folder)
    embedder.preprocessor.sequence_length = length
    for layer in embedder.backbone.transformer_layers:
        # KerasHub takes the tanh form whatever the folder says.
        layer._feedforward_intermediate_dense.activation = functools.partial(
            keras.activations.gelu, approximate=False
        )
    call = tf.function(embedder, reduce_retracing=True)

    def embed(batch):
        inputs = embedder.preprocessor(tf.constant(batch))
        if trim:
            mask = inputs["padding_mask"].numpy()
            longest = mask.sum(axis=1).max()
            inputs = {name: x[:, :longest] for name, x in inputs.items()}
        return call(inputs).numpy()

    batches = by_length if trim else in_batches
    return lambda texts: batches(texts, batch_size, embed)


def sentence_transformers(
    folder: str, length: int, batch_size: int, threads: int
) -> Embed:
    """`SentenceTransformer.encode`, which sorts by length itself."""
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    model.max_seq_length = length
    return lambda texts: model.encode(
        texts, batch_size=batch_size, show_progress_bar=False
    )


def onnx_runtime(
    folder: str,
    length: int,
    batch_size: int,
    threads: int,
    int8: bool,
    workdir: str,
) -> Embed:
    """ONNX Runtime with Hugging Face's fast tokenizer."""
    import onnxruntime
    import tokenizers

    path = written(
        pathlib.Path(workdir) / "encoder.onnx",
        lambda path: export_onnx(folder, path),
    )
    if int8:
        from onnxruntime.quantization import quantize_dynamic

        whole = path
        path = written(
            path.with_name("encoder_int8.onnx"),
            lambda path: quantize_dynamic(whole, path),
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding()

    def embed(batch):
        rows = tokenizer.encode_batch(batch)
        inputs = {
            "input_ids": np.array([row.ids for row in rows]),
            "attention_mask": np.array([row.attention_mask for row in rows]),
        }
        return session.run(None, inputs)[0]

    return lambda texts: by_length(texts, batch_size, embed)


def written(path: pathlib.Path, write: Callable) -> pathlib.Path:
    """The path, after `write` has written the file unless it exists."""
    if not path.exists():
        # `keras_fixedhead` needs Keras, which the peers may lack.
        part = path.with_suffix(".part")
        write(part)
        os.replace(part, path)
    return path


def export_onnx(folder: str, path: pathlib.Path) -> None:
    """Writes Hugging Face's encoder with mean pooling, sizes left open."""
    import torch
    import transformers

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = transformers.AutoModel.from_pretrained(
                folder, attn_implementation="eager"
            ).eval()

        def forward(self, input_ids, attention_mask):
            x = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            mask = attention_mask[:, :, None].to(x.dtype)
            pooled = (x * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(pooled, dim=1)

    ids = torch.ones(3, 17, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        Embedder(),
        (ids, mask),
        str(path),
        input_names=["input_ids", "attention_mask"],
        output_names=["pooled"],
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        external_data=False,
    )


SYSTEMS: dict[str, Callable[..., Embed]] = {
    "ours": ours,
    "encode_text": encode_text,
    "keras_hub": keras_hub,
    "sentence_transformers": sentence_transformers,
    "onnx_runtime": onnx_runtime,
}


def main(system: str, arguments: str) -> None:
    # Libraries print to standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    embed = SYSTEMS[system](**json.loads(arguments))
    print("ready", file=answers, flush=True)
    idle_from = time.process_time()
    for line in sys.stdin:
        request = json.loads(line)
        began, began_working = time.perf_counter(), time.process_time()
        rows = embed(request["texts"])
        seconds = time.perf_counter() - began
        if request["output"]:
            np.save(request["output"], np.asarray(rows, np.float32))
        answer = {"seconds": seconds, "idle": began_working - idle_from}
        # What threads still spin for after this counts as idle.
        idle_from = time.process_time()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
