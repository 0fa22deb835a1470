# %% [markdown]
# # Classify and answer
#
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/REPOSITORY_URL/blob/main/colab/3_classify_and_answer.ipynb)
#
# You fine-tune a public encoder twice, to label pairs of sentences (SNLI) and to find
# answers in paragraphs (SQuAD v1.1), and ask it questions of your own. It takes about
# five minutes on two CPU cores, installation and downloads apart.

# %%
# !git clone -q REPOSITORY_URL keras_fixedhead
# %cd keras_fixedhead
# %pip install -q --upgrade pip
# %pip install -q --constraint constraints.txt ".[pictures,retrieval]" \
#     --group training --group export
# %env TF_CPP_MIN_LOG_LEVEL=3
# %env TTY_COMPATIBLE=0

# %% [markdown]
# ## An encoder to start from
#
# all-MiniLM-L6-v2 without three of its six layers, so that a step takes half as long. For
# a real run keep all layers.

# %%
import os

SOURCE = os.environ.get("SOURCE", "sentence-transformers/all-MiniLM-L6-v2")

# !python -m training.convert --source {SOURCE} --output runs/encoder \
#     --num_texts 10 --drop_layers 1 3 4

# %% [markdown]
# ## Data
#
# The official files, or those that `SQUAD` and `NLI` name. The slices are 3,000 pairs
# with 500 others held out, and 40 articles with two others held out.

# %%
import itertools
import json
import pathlib

from keras_fixedhead.beir import write_records
from training.corpus.texts import read_rows

# !test $SQUAD || curl -sSLO https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v1.1.json
# !test $NLI || curl -sSLO https://nlp.stanford.edu/projects/snli/snli_1.0.zip
# !test $NLI || unzip -qo snli_1.0.zip
squad = os.environ.get("SQUAD", "train-v1.1.json")
nli = os.environ.get("NLI", "snli_1.0/snli_1.0_train.jsonl")

rows = [
    {"premise": row.texts[0], "hypothesis": row.texts[1], "label": row.label}
    for row in itertools.islice(read_rows(nli), 4000)
    if row.label is not None
]
write_records("nli_train.jsonl", rows[:3000])
write_records("nli_heldout.jsonl", rows[3000:3500])

articles = json.loads(pathlib.Path(squad).read_text("utf-8"))["data"]
for name, part in {"train": articles[:40], "heldout": articles[-2:]}.items():
    pathlib.Path(f"squad_{name}.json").write_text(json.dumps({"data": part}))

# %% [markdown]
# ## Labels of pairs
#
# For a real run use all of the data with `--config mnli`, and nothing from `--steps` on.

# %%
# !python -m training.finetune --config small_nli --init runs/encoder \
#     --data nli_train.jsonl --validation nli_heldout.jsonl --workdir runs/nli \
#     --steps 150 --warmup_steps 15 --learning_rate 2e-4 \
#     --evaluation_interval 50 --checkpoint_interval 50

# %%
import keras

from keras_fixedhead import FixedHeadTextClassifier

premise = "A man plays the guitar on a stage."
hypotheses = ["A man makes music.", "A man sleeps.", "The man is famous."]
classifier = FixedHeadTextClassifier.from_preset("runs/nli/preset")
inputs = classifier.preprocessor(([premise] * 3, hypotheses), y=None)
print(premise, *classifier.labels, sep="  ")
for text, row in zip(hypotheses, keras.ops.softmax(classifier(inputs))):
    print(text, *(f"{probability:.2f}" for probability in row), sep="  ")

# %% [markdown]
# ## Answers
#
# For a real run use all of the data with `--config squad`, and nothing from
# `--sequence_length` on.

# %%
# !python -m training.finetune --config small_squad --init runs/encoder \
#     --data squad_train.json --validation squad_heldout.json --workdir runs/squad \
#     --sequence_length 192 --steps 120 --warmup_steps 12 --global_batch_size 16 \
#     --evaluation_interval 40 --checkpoint_interval 40

# %%
from keras_fixedhead import FixedHeadSpanLabeler, context_windows

question = "When was the report written?"
context = "The report of 1842 was written by Edwin Chadwick, who paid for it."
labeler = FixedHeadSpanLabeler.from_preset("runs/squad/preset")
windows = labeler.preprocessor.windows(question, context)
logits = labeler(labeler.preprocessor.pad(windows))
print(question)
for answer in context_windows.decode(
    logits["start"], logits["end"], windows, 3
):
    print(f"{answer.probability:.2f}  {answer.text}")

# %% [markdown]
# ## The curves
#
# `docs/results.md` has the accuracies of longer runs.

# %%
from IPython.display import Image, display

# !python -m training.curves runs/nli --title "Labels of pairs"
# !python -m training.curves runs/squad --title "Answers"
display(Image("runs/nli/curves.png"), Image("runs/squad/curves.png"))

# %% [markdown]
# ## Check
#
# One label for all pairs is right for a third of them. 120 updates are few for SQuAD: they
# improve the answers, and 360 updates of all six layers reach an F1 of 63
# (`docs/results.md`).


# %%
def read_metric(run, name):
    lines = pathlib.Path(run, "metrics.jsonl").read_text().splitlines()
    return [row[name] for row in map(json.loads, lines) if name in row]


accuracy = read_metric("runs/nli", "accuracy_nli_heldout")
f1 = read_metric("runs/squad", "f1")
print(f"accuracy {accuracy}, F1 {f1}")
assert accuracy[-1] > 0.45, "the classifier beats one label for all pairs"
assert f1[-1] > 1.3 * f1[0], "the updates improve the answers"
