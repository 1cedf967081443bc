"""The scalars of every training step, for TensorBoard."""

from keras_mp import keras_internals
from keras_mp.optimizer import FP32MasterOptimizer


class StepLog:
    """Writes the state of the loss scale and the norm of the gradients after a step.

    Args:
        log_dir: str, the folder.
        optimizer: `FP32MasterOptimizer` that keeps the norm.
    """

    def __init__(self, log_dir: str, optimizer: FP32MasterOptimizer) -> None:
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(log_dir)
        self._optimizer = optimizer

    def write(self) -> None:
        """Writes what is known after a step; those that were skipped are counted."""
        import tensorflow as tf

        applied = keras_internals.applied_steps(self._optimizer.inner_optimizer)
        step = int(applied.numpy()) + int(self._optimizer.skipped_steps.numpy())
        with self._writer.as_default(step=step):
            for name in ("loss_scale", "skipped_steps", "gradient_norm"):
                value = getattr(self._optimizer, name).numpy()
                tf.summary.scalar(name, value.astype("float32"))

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        self._writer.close()
