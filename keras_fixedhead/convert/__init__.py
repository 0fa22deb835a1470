"""Converts existing BERTs and Keras models to fixed heads, exactly.

An encoder whose head size is `hidden_dim / num_heads` is a fixed-head encoder
with that head size (the inclusion in the paper's Theorem 2), so its weights
are copied unchanged and the outputs stay the same.
"""

from keras_fixedhead.convert.bert_source import BertSource
from keras_fixedhead.convert.hugging_face import (
    from_hugging_face,
    read_hugging_face,
    to_hugging_face,
)
from keras_fixedhead.convert.keras_models import (
    from_bert_backbone,
    from_multi_head_attention,
    read_bert_backbone,
    swap_attention,
)

__all__ = [
    "BertSource",
    "from_bert_backbone",
    "from_hugging_face",
    "from_multi_head_attention",
    "read_bert_backbone",
    "read_hugging_face",
    "swap_attention",
    "to_hugging_face",
]
