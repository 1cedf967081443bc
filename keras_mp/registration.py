"""Registers the ops of the native library with TensorFlow on `import keras_mp`."""

import warnings

import keras


def register_ops() -> None:
    """Loads the native library, if there is one, so that a SavedModel finds its ops.

    Without a library nothing is printed here: an op warns when it is called.
    `KERAS_MP_OPS=reference` loads nothing.

    Raises:
        ValueError: `KERAS_MP_OPS` is not a mode.
    """
    if keras.backend.backend() != "tensorflow":
        return
    from keras_mp.ops.kernels import native

    if native.mode() == "reference" or not native.LIBRARY.is_file():
        return
    try:
        native.register(native.LIBRARY)
    except native.NativeLibraryError as error:
        warnings.warn(
            "TensorFlow cannot load a SavedModel that contains ops of keras_mp. "
            f"{error} KERAS_MP_OPS=reference turns this warning off.",
            stacklevel=2,
        )
