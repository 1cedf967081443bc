"""The functions of `keras_mp.ops` in functional models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import keras

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_Function = TypeVar("_Function", bound=Callable[..., Any])


@keras.saving.register_keras_serializable(package="keras_mp")
class FP32Reduction(keras.Operation):
    """A call of a function of `keras_mp.ops` as a node of a functional model.

    Args:
        function: the name of the function.
        arguments: the arguments that are not tensors, by name.
        name: the name of the node; default derived from the name of the class.

    Raises:
        ValueError: there is no such function, or it has no such argument.
    """

    def __init__(
        self, function: str, arguments: dict[str, Any], name: str | None = None
    ) -> None:
        super().__init__(name=name)
        if function not in _FUNCTIONS:
            raise ValueError(
                f"`function` must be one of {sorted(_FUNCTIONS)}. "
                f"Received: function={function!r}."
            )
        known = set(inspect.signature(_FUNCTIONS[function]).parameters)
        if not set(arguments) <= known:
            raise ValueError(
                f"`arguments` of {function} must be among {sorted(known)}. "
                f"Received: arguments={arguments!r}."
            )
        self.function = function
        self.arguments = arguments

    def call(self, **tensors: Any) -> Any:
        return _FUNCTIONS[self.function](**tensors, **self.arguments)

    def get_config(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "arguments": self.arguments,
            "name": self.name,
        }


def symbolic(*tensors: str) -> Callable[[_Function], _Function]:
    """Makes a function of `keras_mp.ops` accept `keras.KerasTensor`.

    Args:
        *tensors: names of the arguments that are tensors.
    """

    def decorate(function: _Function) -> _Function:
        _FUNCTIONS[function.__name__] = function
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            given = {
                name: arguments.pop(name)
                for name in tensors
                if arguments.get(name) is not None
            }
            if not any(keras.utils.is_keras_tensor(x) for x in given.values()):
                return function(*args, **kwargs)
            if isinstance(arguments.get("seed"), keras.random.SeedGenerator):
                raise ValueError(
                    "With KerasTensors, `seed` must be an int or two ints, since a "
                    "functional model does not save a generator with its operations. "
                    f"Received: seed={arguments['seed']!r}. For other weights at every "
                    "call, use keras_mp.layers.MultiHeadAttention."
                )
            if arguments.get("output_dtype") is not None:
                # A string can be saved in the config.
                dtype = keras.backend.standardize_dtype(arguments["output_dtype"])
                arguments["output_dtype"] = dtype
            return FP32Reduction(function.__name__, dict(arguments))(**given)

        return call  # type: ignore[return-value]

    return decorate
