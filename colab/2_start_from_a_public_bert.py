# %% [markdown]
# # Start from a public BERT
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/REPOSITORY_URL/blob/main/colab/2_start_from_a_public_bert.ipynb)
#
# You convert all-MiniLM-L6-v2, embed texts in three lines, give it larger heads, drop
# two of its six layers, fine-tune the smaller model on your own pairs, and search. It
# takes about four minutes on two CPU cores, installation apart.

# %%
# !git clone -q REPOSITORY_URL keras_fixedhead
# %cd keras_fixedhead
# %pip install -q --upgrade pip
# %pip install -q --constraint constraints.txt ".[pictures,retrieval]" \
#     --group training --group export
# %env TF_CPP_MIN_LOG_LEVEL=3
# %env TTY_COMPATIBLE=0

# %% [markdown]
# ## Convert
#
# `SOURCE` is a folder, or the name of a repository of the Hugging Face Hub. The command
# compares outputs with BERT's forward pass in NumPy before it writes anything.

# %%
import os

SOURCE = os.environ.get("SOURCE", "sentence-transformers/all-MiniLM-L6-v2")

# !python -m training.convert --source {SOURCE} --output runs/minilm \
#     --num_texts 10

# %% [markdown]
# ## Embed in three lines

# %%
from keras_fixedhead import FixedHeadTextEmbedder

embedder = FixedHeadTextEmbedder.from_preset("runs/minilm")
texts = ["remove duplicates", "drop repeated rows", "plot a histogram"]
embeddings = embedder.encode_text(texts)

print((embeddings @ embeddings.T).round(2))

# %% [markdown]
# ## Grow the heads
#
# MiniLM's heads have size 32, for up to 256 tokens. The report shows what they do. Heads
# of 128 compute the same, and can learn more.

# %%
import numpy as np

from keras_fixedhead import growth
from keras_fixedhead.diagnostics import attention_report

long_texts = [FixedHeadTextEmbedder.__doc__]
print(attention_report(embedder, long_texts))
grown = growth.grow_head_size(embedder, 128)
growth_error = np.abs(grown.encode_text(texts) - embeddings).max()
print(f"heads of 128 change the embeddings by {growth_error:.1e}")

# %% [markdown]
# ## Your own pairs
#
# A file of JSON lines with `query` and `document`. Here the query is the first sentence
# of a docstring of Keras, the document is the rest. `prepare` holds some pairs out.

# %%
import keras

from keras_fixedhead.beir import write_records
from training.corpus.pairs import read_jsonl, write_jsonl
from training.prepare.docstrings import read_docstrings

pairs, _ = read_docstrings(keras.__path__)
write_jsonl("pairs.jsonl", pairs)  # put your own file in its place
# !python -m training.prepare pairs --source pairs.jsonl --output runs/data
train = read_jsonl("runs/data/train.jsonl")
write_records("texts.jsonl", [{"text": pair.document} for pair in train])

# %% [markdown]
# ## Shrink, then fine-tune
#
# `shrink` drops two layers and fits the others to all six, on texts like those that you
# will embed. For a real run use 80,000 tokens, and leave out what follows `--steps`.

# %%
# !python -m training.shrink --source runs/minilm --num_layers 4 --output runs/shrunk \
#     --calibration texts.jsonl --calibration_tokens 20000 \
#     --heldout_texts 100 --sequence_length 128
# !python -m training.finetune --config retrieval --init runs/shrunk \
#     --data runs/data --workdir runs/tuned --steps 30 --warmup_steps 10 \
#     --global_batch_size 32 --document_length 96 --validation_pairs 64 \
#     --evaluation_interval 30 --checkpoint_interval 30

# %% [markdown]
# ## Measure
#
# nDCG@10 is 1 if every query finds its document first, and 0 if none finds it among the
# first ten.

# %%
import json
import pathlib

import matplotlib.pyplot as plt

COLLECTION = "--collection runs/data/heldout --sequence_length 128 --output"
# !python -m training.evaluate --model runs/minilm {COLLECTION} six.json
# !python -m training.evaluate --model runs/shrunk {COLLECTION} four.json
# !python -m training.evaluate --model runs/tuned/preset {COLLECTION} tuned.json

ndcg = {}
for name in ("six", "four", "tuned"):
    [found] = json.loads(pathlib.Path(f"{name}.json").read_text()).values()
    ndcg[name] = found["exact"]["nDCG@10"]
figure, axis = plt.subplots(figsize=(7, 2.5), layout="constrained")
LABELS = ["6 layers", "4 layers", "4 layers, fine-tuned"]
axis.bar_label(axis.barh(LABELS, list(ndcg.values())), fmt="%.3f")
axis.set(xlabel="nDCG@10 on the held-out queries", ylabel="model", xlim=(0, 1))
axis.set_title("Four layers keep 90% of the nDCG@10 of six")
plt.show()

# %% [markdown]
# ## Search
#
# In Python. Notebook 5 exports a model and searches through a server.

# %%
from keras_fixedhead import retrieval

tuned = FixedHeadTextEmbedder.from_preset("runs/tuned/preset")
documents = [pair.document for pair in pairs]
index = retrieval.build_index(tuned.encode_text(documents))
query = ["stop training when the loss no longer improves"]
best = retrieval.search_index(index, tuned.encode_text(query), 3)
for row, score in zip(best.documents[0], best.scores[0]):
    print(f"{score:.2f}  {pairs[row].id}: {pairs[row].query}")

# %% [markdown]
# ## Check

# %%
assert growth_error < 1e-5, "growing the heads keeps the outputs"
assert ndcg["tuned"] >= 0.9 * ndcg["six"], (
    "four layers keep 90% of the nDCG@10 of six"
)
found = [pairs[row].id for row in best.documents[0]]
assert any("EarlyStopping" in name for name in found), "the search finds it"
