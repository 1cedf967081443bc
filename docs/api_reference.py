"""What the API pages show beyond what griffe reads in the source."""

import inspect
import re
import textwrap
from typing import Any

import griffe

import keras_mp

EXAMPLE = re.compile(r"^Example:\n(.*?)(?=^Reference:|\Z)", re.DOTALL | re.MULTILINE)
KERAS_ARGUMENTS = re.compile(r"^Args: as in `keras\.layers\.(\w+)`\.$", re.MULTILINE)

KERAS_LAYERS = "https://keras.io/api/layers/"
# The folder of keras_mp/layers, and that of the site of Keras.
FOLDERS = {
    "activations": "activation_layers/",
    "attention": "attention_layers/",
    "convolutional": "convolution_layers/",
    "core": "core_layers/",
    "merging": "merging_layers/",
    "normalization": "normalization_layers/",
    "pooling": "pooling_layers/",
    "rnn": "recurrent_layers/",
}
# Those in other folders, and those without a page of their own.
PAGES = {
    "Activation": "core_layers/activation/",
    "RMSNormalization": "normalization_layers/",
    "ReversibleEmbedding": "core_layers/",
    "SpectralNormalization": "preprocessing_layers/numerical/spectral_normalization/",
}


def keras_page(layer: str, folder: str) -> str:
    """Returns the address of a Keras layer's documentation."""
    if layer in PAGES:
        return KERAS_LAYERS + PAGES[layer]
    # Conv2DTranspose: convolution2d_transpose; ConvLSTM2D: conv_lstm2d.
    name = re.sub(r"Conv(?=\dD)", "Convolution", layer)
    name = re.sub(r"(\d)D", r"\1d", name)
    name = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return f"{KERAS_LAYERS}{FOLDERS[folder]}{name.lower()}/"


def constructor(cls: type) -> griffe.Function:
    """Returns the `__init__` that a class has from Keras, or as a named tuple."""
    parameters = inspect.signature(cls).parameters.values()
    return griffe.Function(
        "__init__",
        parameters=griffe.Parameters(
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword),
            *(
                griffe.Parameter(
                    parameter.name,
                    kind=griffe.ParameterKind[parameter.kind.name.lower()],
                    default=None
                    if parameter.default is parameter.empty
                    else repr(parameter.default),
                )
                for parameter in parameters
            ),
        ),
    )


class ApiReference(griffe.Extension):
    """Translates docstrings in Keras's style, and classes that inherit from Keras."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Has `Example:` read as a doctest."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: "Examples:\n" + textwrap.indent(match[1], "    "),
                obj.docstring.value,
            )

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Leaves the type to the description, where it is `Any` to Python."""
        for parameter in func.parameters:
            if str(parameter.annotation) == "Any":
                parameter.annotation = None
        if str(func.returns) == "Any":
            func.returns = None

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Leaves the type to the description here, too."""
        if str(attr.annotation) == "Any":
            attr.annotation = None

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Links the arguments of a layer to those of the Keras layer."""
        match = cls.docstring and KERAS_ARGUMENTS.search(cls.docstring.value)
        if match:
            folder = cls.path.removeprefix("keras_mp.layers.").partition(".")[0]
            link = f"[`keras.layers.{match[1]}`]({keras_page(match[1], folder)})"
            cls.docstring.value = cls.docstring.value.replace(
                match[0], f"Args: as in {link}."
            )

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Completes what only running the package would tell."""
        # A function's name does not mean the module that it comes from.
        for package in (pkg["ops"], pkg["optimizer"]):
            for name in set(package.exports) & set(package.modules):
                package.members[name] = package[name][name]
        pkg.members["wrap"].resolve_target()  # again: it was the module
        for package, module in ((pkg, keras_mp), (pkg["layers"], keras_mp.layers)):
            for name in module.__all__:
                member, value = package[name], getattr(module, name)
                is_class = member.is_class and not issubclass(value, Exception)
                if is_class and "__init__" not in member.all_members:
                    member.final_target.set_member("__init__", constructor(value))
