"""Names of metrics for readers, with units, for the axes of pictures."""

import re

_WORDS = {
    "cosine": "cosine to the teacher",
    "lm": "LM",
    "f1": "F1",
    "mrr@10": "MRR@10",
    "mnli": "MNLI",
    "snli": "SNLI",
}
# By a part of a metric's name; the first that fits.
_UNITS = {
    "embedding_loss": "1 - cosine",
    "similarity_loss": "",
    "state_loss": "",
    "attention_loss": "",
    "loss": "nats",
    "accuracy": "fraction right",
    "recall": "fraction found",
    "neighbours": "fraction kept",
    "exact_match": "%",
}


def metric_label(name: str) -> str:
    """Returns "Masked LM loss (nats)" for `masked_lm_loss`."""
    unit = next((unit for part, unit in _UNITS.items() if part in name), "")
    name = name.removeprefix("heldout_").replace("mnli_dev", "mnli")
    # A metric of one held-out source.
    name = re.sub("(accuracy|loss)_", r"\1_on_", name)
    label = " ".join(_WORDS.get(word, word) for word in name.split("_"))
    label = label[0].upper() + label[1:]
    return f"{label} ({unit})" if unit else label
