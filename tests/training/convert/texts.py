"""Texts to compare outputs on, and what the verb prints of them."""

import re

TEXTS = [
    "Attention heads!",
    "a cab, a bad cafe",
    "zzz",
    "b c d e f g h i j k l m n o p q r s t u v w x y z",
    "中 head",
]


def figures(said, name):
    """The largest difference that is printed, of each comparison."""
    return [float(x) for x in re.findall(rf"{name} (\S+) \(of", said)]
