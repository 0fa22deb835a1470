"""One system that embeds texts, in a process of its own.

    python embedding_worker.py SYSTEM OPTIONS

`benchmarks.embedding` starts it with the Python that has the system's packages:
PyTorch beside TensorFlow in one process may crash, and TensorFlow's threads are
one setting per process. OPTIONS is a JSON object. Each line of standard input
is a JSON list of texts; their embeddings, float32 `[N, D]`, go to
embeddings.npy in `workdir`. The answer is a line with the seconds, and the
seconds of processor time between the previous answer and this request.
"""

import contextlib
import json
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable

import numpy as np

# Embeds texts, float [N, D].
Embed = Callable[[list[str]], np.ndarray]
Options = types.SimpleNamespace
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


def ours(options: Options) -> Embed:
    """An export, as `export.index` embeds with it."""
    from export import model_source

    source = model_source.Source(
        saved_model=pathlib.Path(options.folder),
        batch_size=options.batch_size,
        threads=options.threads,
    )
    opened = _OPEN.enter_context(source.open())
    return lambda texts: opened.embed(texts, "document")


def encode_text(options: Options) -> Embed:
    from keras_fixedhead import FixedHeadTextEmbedder

    embedder = FixedHeadTextEmbedder.from_preset(options.folder)
    embedder.preprocessor.sequence_length = options.length
    return lambda texts: embedder.encode_text(texts, verbose=0)


def keras_hub(options: Options) -> Embed:
    """KerasHub's own embedder, padded to `length` or to the longest."""
    import keras
    import keras_hub
    import tensorflow as tf

    from keras_fixedhead.convert import from_hugging_face

    embedder = keras_hub.models.BertTextEmbedder.from_preset(options.folder)
    embedder.preprocessor.sequence_length = options.length
    # KerasHub does not read these two.
    backbone = from_hugging_face(options.folder).backbone
    for layer in embedder.backbone._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = backbone.layer_norm_epsilon
    for layer in embedder.backbone.transformer_layers:
        ours = backbone.transformer_layers[0].intermediate_dense.activation
        layer._feedforward_intermediate_dense.activation = ours
    call = tf.function(embedder, reduce_retracing=True)

    def embed(batch):
        inputs = embedder.preprocessor(tf.constant(batch))
        if options.trim:
            mask = inputs["padding_mask"].numpy()
            longest = mask.sum(axis=1).max()
            inputs = {name: x[:, :longest] for name, x in inputs.items()}
        return call(inputs).numpy()

    batches = by_length if options.trim else in_batches
    return lambda texts: batches(texts, options.batch_size, embed)


def sentence_transformers(options: Options) -> Embed:
    """`SentenceTransformer.encode`, which sorts by length itself."""
    import sentence_transformers
    import torch

    torch.set_num_threads(options.threads)
    model = sentence_transformers.SentenceTransformer(
        options.folder, device="cpu"
    )
    model.max_seq_length = options.length
    return lambda texts: model.encode(
        texts, batch_size=options.batch_size, show_progress_bar=False
    )


def wordllama(options: Options) -> Embed:
    """Static word vectors, averaged."""
    import wordllama

    # Its own search for the packaged tokenizer misspells the folder.
    folder = pathlib.Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder).embed


def onnx_runtime(options: Options) -> Embed:
    import onnxruntime
    import tokenizers

    path = pathlib.Path(options.workdir, "encoder.onnx")
    export_onnx(options.folder, path)
    if options.int8:
        from onnxruntime.quantization import quantize_dynamic

        whole, path = path, path.with_name("encoder_int8.onnx")
        quantize_dynamic(whole, path)
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(
        str(path), session_options, providers=["CPUExecutionProvider"]
    )
    tokenizer = tokenizers.Tokenizer.from_file(
        f"{options.folder}/tokenizer.json"
    )
    tokenizer.enable_truncation(options.length)
    tokenizer.enable_padding()

    def embed(batch):
        rows = tokenizer.encode_batch(batch)
        inputs = {
            "input_ids": np.array([row.ids for row in rows]),
            "attention_mask": np.array([row.attention_mask for row in rows]),
        }
        return session.run(None, inputs)[0]

    return lambda texts: by_length(texts, options.batch_size, embed)


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


def main(system: str, arguments: str) -> None:
    options = Options(**json.loads(arguments))
    # Libraries print to standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    embed = globals()[system](options)
    idle_from = time.process_time()
    for line in sys.stdin:
        began, began_working = time.perf_counter(), time.process_time()
        rows = embed(json.loads(line))
        seconds = time.perf_counter() - began
        np.save(
            f"{options.workdir}/embeddings.npy", np.asarray(rows, np.float32)
        )
        answer = [seconds, began_working - idle_from]
        # What threads still spin for after this counts as idle.
        idle_from = time.process_time()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
