# %% [markdown]
# # Export, serve, query
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/REPOSITORY_URL/blob/main/colab/5_export_serve_query.ipynb)
#
# You export an encoder as a SavedModel for TensorFlow Serving, check it as a release
# is checked, start a server, query it with `curl` and from Python, and search through
# it. It takes about three minutes on two CPU cores, installation apart.

# %%
# !git clone -q REPOSITORY_URL keras_fixedhead
# %cd keras_fixedhead
# %pip install -q --upgrade pip
# %pip install -q --constraint constraints.txt ".[pictures,retrieval]" \
#     --group training --group export
# %env TF_CPP_MIN_LOG_LEVEL=3
# %env TTY_COMPATIBLE=0

# %% [markdown]
# ## An encoder
#
# all-MiniLM-L6-v2, converted. Any preset does, such as `runs/tuned/preset` of notebook 2.

# %%
import os

SOURCE = os.environ.get("SOURCE", "sentence-transformers/all-MiniLM-L6-v2")

# !python -m training.convert --source {SOURCE} --output runs/minilm \
#     --num_texts 10

# %% [markdown]
# ## Export
#
# The SavedModel takes strings: its graph contains the tokenizer. The gate checks it
# before it is published. `verify` runs the gate again, for example after a copy to
# another machine: checksums, and Keras's answers in TensorFlow's C++ loader.

# %%
# !python -m export.saved_model --model runs/minilm --output models/minilm
# !python -m export.verify models/minilm/1

# %% [markdown]
# ## Serve
#
# `export.serve` starts `tensorflow_model_server` where it is installed, and elsewhere a
# stand-in with the same APIs. For a real deployment see `docs/deploy.md`.

# %%
import subprocess
import sys

from export import client

SERVE = "-m export.serve --model_name minilm --model_base_path models/minilm"
server = subprocess.Popen([sys.executable, *SERVE.split()])
connection = client.connect("grpc://127.0.0.1:8500", "minilm")
connection.wait_until_ready(120, lambda: server.poll() is None)

# %% [markdown]
# ## Query with curl and from Python

# %%
# !curl -s -d '{"instances": ["remove duplicates"]}' \
#     http://127.0.0.1:8501/v1/models/minilm:predict | head -c 150

# %%
import numpy as np

from keras_fixedhead import FixedHeadTextEmbedder

texts = ["remove duplicates", "plot a histogram", "Grüße aus Köln"]
served = connection.embed(texts)
embedder = FixedHeadTextEmbedder.from_preset("runs/minilm")
difference = np.abs(served - embedder.encode_text(texts)).max()
print(f"{served.shape}, largest difference from Python: {difference:.1e}")

# %% [markdown]
# ## Index and search
#
# A corpus is a file of JSON lines with `text`. Here it is the docstrings of Keras's
# callbacks and losses. The index keeps 32 bytes per document. The search fuses the
# encoder's ranking with that of BM25.

# %%
import json
import pathlib

import keras

from keras_fixedhead.beir import write_records

classes = [*vars(keras.callbacks).values(), *vars(keras.losses).values()]
texts = {
    each.__name__: each.__doc__ for each in classes if isinstance(each, type)
}
write_records("corpus.jsonl", ({"_id": k, "text": v} for k, v in texts.items()))
QUERY = "stop training when the loss no longer improves"
write_records("queries.jsonl", [{"query": QUERY}])
SERVER = "--server grpc://127.0.0.1:8500 --model_name minilm"

# !python -m export.index --corpus corpus.jsonl --output runs/index {SERVER} \
#     --dimension 32 --reduction pca --precision int8
# !python -m export.search --index runs/index {SERVER} --query "{QUERY}" --k 5
# !python -m export.search --index runs/index {SERVER} --queries queries.jsonl \
#     --output answers.jsonl
answer = json.loads(pathlib.Path("answers.jsonl").read_text())

# %% [markdown]
# ## Stop the server, and check

# %%
connection.close()
server.terminate()
server.wait(60)

assert difference < 1e-5, "the served embedding is that of Python"
assert answer["hits"][0]["id"] == "EarlyStopping", "the search finds it"
