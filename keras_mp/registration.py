"""The ops of the native library, made known to TensorFlow by `import keras_mp`."""

import keras


def register_ops() -> None:
    """Loads the native library, if it is there, so that a SavedModel finds its ops.

    Nothing is said where it cannot be loaded: an op does so when it is called, and
    `python -m keras_mp.info` when it is asked. KERAS_MP_OPS=reference loads nothing.
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
