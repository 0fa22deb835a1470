"""What layers and models share: types, initializers and configurations."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

# The tensors of backends and symbolic ones have no type in common.
Tensor = Any
Tensors = dict[str, Tensor]
Shape = tuple[int | None, ...]


def kernel_initializer(
    seed: int | None = None,
) -> keras.initializers.Initializer:
    """BERT's (Devlin et al. 2018)."""
    return keras.initializers.TruncatedNormal(stddev=0.02, seed=seed)


def dense(
    size: int, name: str, dtype: Any, activation: str | None = None
) -> keras.layers.Dense:
    return keras.layers.Dense(
        size,
        kernel_initializer=kernel_initializer(),
        activation=activation,
        dtype=dtype,
        name=name,
    )


def resolve_activation(activation: str | Callable) -> Callable:
    """`keras.activations.get`, which only has GELU's exact (erf) form."""
    if activation == "gelu_approximate":
        return functools.partial(keras.activations.gelu, approximate=True)
    return keras.activations.get(activation)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, unless it is in float64."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


def refuse_unknown_arguments(model: keras.Model, arguments: dict) -> None:
    """Raises TypeError for arguments that `keras.Model` would ignore."""
    unknown = sorted(arguments.keys() - {"name", "trainable", "dtype"})
    if unknown:
        raise TypeError(
            f"{type(model).__name__} has no argument "
            f"{', '.join(f'`{name}`' for name in unknown)}. See its docstring "
            "for its arguments."
        )


def arguments_of(layer: keras.layers.Layer) -> dict:
    """The constructor's arguments, from equal attributes.

    But for `dtype` and the parts of a task. A subclass made elsewhere adds its
    arguments itself.
    """
    cls: Any = next(
        cls
        for cls in type(layer).__mro__
        if cls.__module__.startswith(f"{__package__}.")
    )
    values = {}
    for name in inspect.signature(cls.__init__).parameters:
        if name in ("self", "dtype", "backbone", "preprocessor", "kwargs"):
            continue
        value = getattr(layer, name)
        if isinstance(value, (list, tuple)):
            value = list(value)
        values[name] = keras.saving.serialize_keras_object(value)
    return values


class FixedHeadLayer(keras.layers.Layer):
    """Base of the layers: several outputs, and the configuration."""

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        several = kwargs.get("return_attention_scores")
        if several or kwargs.get("cache") is not None:
            # Keras finds the shapes of several outputs by tracing `call`.
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        return super().compute_output_spec(*args, **kwargs)

    def get_config(self) -> dict:
        policy = self.dtype_policy
        # `quantize` gives sublayers their own policies, which loading needs.
        quantized = {
            sublayer.path: sublayer.dtype_policy
            for sublayer in self._flatten_layers(include_self=False)
            if sublayer.quantization_mode is not None
        }
        if quantized and not isinstance(
            policy, keras.dtype_policies.DTypePolicyMap
        ):
            policy = keras.dtype_policies.DTypePolicyMap(policy.name, quantized)
        return {
            **super().get_config(),
            **arguments_of(self),
            "dtype": keras.dtype_policies.serialize(policy),
        }
