"""What the configurations of layers and models share."""

import inspect

import keras


def arguments_of(cls: type, layer: keras.layers.Layer) -> dict:
    """The arguments of a class's constructor, from attributes of their names.

    Leaves out `dtype` and `**kwargs`, which Keras's `get_config` returns.
    """
    values = {}
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in ("self", "dtype") or parameter.kind is parameter.VAR_KEYWORD:
            continue
        value = getattr(layer, name)
        if isinstance(value, (list, tuple)):
            value = list(value)
        values[name] = keras.saving.serialize_keras_object(value)
    return values


def serialize_dtype(layer: keras.layers.Layer) -> dict:
    """The dtype policy of a layer with sublayers, for its `get_config`.

    `quantize` gives sublayers their own policies. Without these in the
    config, loading would rebuild float sublayers and not find their weights.
    """
    policy = layer.dtype_policy
    quantized = {
        sublayer.path: sublayer.dtype_policy
        for sublayer in layer._flatten_layers(include_self=False)
        if sublayer.quantization_mode is not None
    }
    if quantized and not isinstance(
        policy, keras.dtype_policies.DTypePolicyMap
    ):
        policy = keras.dtype_policies.DTypePolicyMap(policy.name, quantized)
    return keras.dtype_policies.serialize(policy)
