# %% [markdown]
# # Pre-train
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/REPOSITORY_URL/blob/main/colab/4_pretrain.ipynb)
#
# You pre-train an encoder with BERT's two tasks, stop the run, continue it with the same
# command, and see its curves. This setting is for a look: it takes about four minutes on
# two CPU cores, installation apart. The last table has the flags for GPUs and TPUs.

# %%
# !git clone -q REPOSITORY_URL keras_fixedhead
# %cd keras_fixedhead
# %pip install -q --upgrade pip
# %pip install -q --constraint constraints.txt ".[pictures,retrieval]" \
#     --group training --group export
# %env TF_CPP_MIN_LOG_LEVEL=3
# %env TTY_COMPATIBLE=0

# %% [markdown]
# ## Text
#
# The docstrings of TensorFlow. For a real run name your own files, or `--source
# tfds:wikipedia/20230601.en`. `prepare` learns a vocabulary and holds documents out.

# %%
import pathlib

import tensorflow

from keras_fixedhead.beir import write_records
from training.prepare.docstrings import read_docstrings

pairs, _ = read_docstrings([pathlib.Path(tensorflow.__file__).parent])
write_records("text.jsonl", ({"text": pair.document} for pair in pairs))
print(f"{len(pairs):,} documents")
# !python -m training.prepare text --source text.jsonl --output runs/data \
#     --vocabulary_size 4000 --heldout 0.05

# %% [markdown]
# ## Train, and stop in the middle
#
# Two layers of d = 128 with 4 heads of 64, the sequence length. This cell stops the run
# after 100 updates, as a preempted machine would; the next one continues it.

# %%
import subprocess
import sys
import time

COMMAND = """-m training.pretrain --config small --data runs/data --workdir runs/train
    --num_layers 2 --head_size 64 --max_sequence_length 64 --sequence_length 64
    --max_predictions 10 --steps 400 --warmup_steps 40 --global_batch_size 64
    --learning_rate 3e-3 --evaluation_examples 256
    --evaluation_interval 100 --checkpoint_interval 100"""
METRICS = pathlib.Path("runs/train/metrics.jsonl")

run = subprocess.Popen([sys.executable, *COMMAND.split()])
while run.poll() is None and (
    not METRICS.exists() or '"step": 100' not in METRICS.read_text()
):
    time.sleep(1)
run.terminate()
print("stopped with exit status", run.wait())

# %%
# !python {" ".join(COMMAND.split())}

# %% [markdown]
# ## Look
#
# A model that knows nothing has a loss of ln(vocabulary) nats. So few updates teach
# little more than how frequent each token is, and nothing about next sentences. The
# curves in `docs/pre_training.md` are of a longer run.

# %%
from IPython.display import Image

# !python -m training.curves runs/train --title "Two layers, docstrings of TensorFlow"
Image("runs/train/curves.png")

# %% [markdown]
# ## Use, and check
#
# The result is a KerasHub preset: `--init` of a fine-tuning run takes it. More `--steps`
# would be another run, which needs another `--workdir`.

# %%
import json
import math

from keras_fixedhead import FixedHeadMaskedLM

model = FixedHeadMaskedLM.from_preset("runs/train/preset")

records = [json.loads(line) for line in METRICS.read_text().splitlines()]
losses = {
    record["step"]: record["heldout_masked_lm_loss"]
    for record in records
    if "heldout_masked_lm_loss" in record
}
chance = math.log(model.backbone.vocabulary_size)
print(f"a model that knows nothing: {chance:.2f} nats")
for step, loss in losses.items():
    print(f"after {step} updates: {loss:.2f} nats on held-out text")
assert max(losses) == 400, "the stopped run went on to its end"
assert losses[400] < losses[0] - 1, "the held-out loss fell"
assert losses[400] < chance - 1, "the model knows more than nothing"

# %% [markdown]
# ## On GPUs and TPUs
#
# `--config paper_stage1` and then `paper_stage2` are the paper's recipe, 24 layers of
# d = 512 with 8 heads of 128. Add to it:
#
# | machine | flags | start with |
# |---|---|---|
# | a GPU | `--dtype mixed_bfloat16 --accumulation_steps 8` | `python -m training.pretrain` |
# | the GPUs of a machine | `--strategy mirrored` | `python -m training.launch worker -- python -m training.pretrain` |
# | several machines | `--strategy multi_worker` | the same on each, with its `TF_CONFIG` |
# | a TPU VM | `--strategy tpu --no_packed` | the same, with TensorFlow's TPU package |
#
# `--accumulation_steps` computes a batch in parts that fit in memory. `docs/launch.md`
# has the commands. We have not run the settings for GPUs, several machines or TPUs yet:
# we lack the hardware.
