"""Registers the ops of the native library with TensorFlow on `import keras_mp`."""

import keras


def register_ops() -> None:
    """Loads the native library, if it exists, so that a SavedModel finds its ops.

    If it cannot be loaded nothing is printed here: an op warns when it is called, and
    `python -m keras_mp info` gives the reason. KERAS_MP_OPS=reference loads nothing.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    from keras_mp.ops.kernels import native

    try:
        if native.mode() == "reference":
            return
        if native.build_facts()["tensorflow"] == tf.__version__:
            tf.load_library(str(native.LIBRARY))
    except (ValueError, OSError, native.NativeLibraryError, tf.errors.OpError):
        return
