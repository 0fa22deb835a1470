"""Embeddings by sentence-transformers, and ids by `transformers`' tokenizer.

    python sentence_embeddings.py FOLDER TEXTS OUTPUT

A process of its own, because PyTorch beside TensorFlow may crash. TEXTS is a
JSON list; OUTPUT an `.npz` file.
"""

import json
import pathlib
import sys

import numpy as np
import sentence_transformers


def main(folder, texts, output):
    texts = json.loads(pathlib.Path(texts).read_text(encoding="utf-8"))
    model = sentence_transformers.SentenceTransformer(folder, device="cpu")
    ids = [model.tokenizer(text)["input_ids"] for text in texts]
    np.savez(
        output,
        embeddings=model.encode(texts),
        max_seq_length=model.max_seq_length,
        ids=np.concatenate(ids),
        lengths=[len(row) for row in ids],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
