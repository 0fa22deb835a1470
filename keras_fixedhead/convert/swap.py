"""Keras models with their attention layers replaced by fixed-head ones."""

import keras

from keras_fixedhead.convert.keras_models import from_multi_head_attention


def swap_attention(model, head_size=None, seed=0):
    """A copy of a model with every `MultiHeadAttention` replaced.

    Each becomes a `FixedMultiHeadAttention` with the same weights, by
    `from_multi_head_attention`. Larger heads leave the outputs as they are
    until they are trained. The copy has weights of its own; if the model is
    compiled, so is the copy, with a new optimizer state.

    There is one exception to equal outputs: Keras 3.15's layer takes the
    implicit mask off its inputs, so that of several layers that attend to one
    masked tensor only one sees the mask. In the copy all of them do.

    Args:
        model: a built functional or `Sequential` model, which may hold other
            such models.
        head_size: int or `None`. The size of each head, not under the
            `key_dim` of any of the layers; `None` keeps each layer's
            `key_dim`.
        seed: int. Seed of the new columns of larger heads.

    Returns:
        A `keras.Model` with equal outputs.

    Raises:
        ValueError: if the model is not functional or `Sequential`, holds no
            `MultiHeadAttention`, holds one inside a layer of another class,
            or one that `from_multi_head_attention` refuses.

    Example:

    ```python
    model = keras.models.load_model("classifier.keras")
    model = swap_attention(model, head_size=128)
    ```

    Source: https://arxiv.org/abs/2002.07028, section 3.1.
    """
    found, hidden = [], []
    _find(model, found, hidden)
    if hidden:
        raise ValueError(
            "Attention inside another layer cannot be replaced from outside: "
            "make a FixedMultiHeadAttention in that layer's `__init__` "
            "(keras_fixedhead.convert.from_bert_backbone converts KerasHub's "
            f"BERT). Received: {', '.join(hidden)}"
        )
    if not found:
        raise ValueError(
            "`model` must be a functional or Sequential keras.Model with a "
            f"keras.layers.MultiHeadAttention. Received: {model!r}"
        )
    copies = []

    def copy(layer):
        if layer in found:
            return from_multi_head_attention(layer, head_size, seed)
        copies.append((layer, type(layer).from_config(layer.get_config())))
        return copies[-1][1]

    swapped = keras.models.clone_model(
        model, clone_function=copy, recursive=True
    )
    for layer, its_copy in copies:
        # Operations, such as a sum of tensors, have no weights.
        if isinstance(layer, keras.layers.Layer):
            its_copy.set_weights(layer.get_weights())
    return swapped


def _find(layer, found, hidden):
    """Collects attention layers, and names those that cannot be replaced."""
    attention = keras.layers.MultiHeadAttention
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):
        for inner in layer.layers:
            _find(inner, found, hidden)
    elif isinstance(layer, attention) and type(layer).call is attention.call:
        found.append(layer)
    else:
        hidden.extend(
            f"{inner.name!r} ({type(inner).__name__}) in {layer.name!r} "
            f"({type(layer).__name__})"
            for inner in layer._flatten_layers()
            if isinstance(inner, attention)
        )
