"""Converts existing BERTs and Keras models to fixed heads, exactly."""

from keras_fixedhead.command import public_names

__getattr__, __all__ = public_names(
    __name__,
    bert_source="BertSource",
    hugging_face="from_hugging_face read_hugging_face to_hugging_face",
    keras_models=(
        "from_bert_backbone from_multi_head_attention read_bert_backbone "
        "swap_attention"
    ),
)
