"""Converts existing BERTs and Keras models to fixed heads, exactly."""

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
