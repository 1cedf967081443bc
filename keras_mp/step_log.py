"""The scalars of every training step, for TensorBoard."""

from collections.abc import Sequence

from keras_mp import keras_internals
from keras_mp.watched_optimizers import Watched, one_of_each_scale


class StepLog:
    """Writes the state of loss scales and the norms of the gradients after a step.

    Args:
        log_dir: str, the folder.
        watched: list of `Watched`. Their optimizers keep the norm.
    """

    def __init__(self, log_dir: str, watched: Sequence[Watched]) -> None:
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(log_dir)
        self._norms = list(watched)
        self._scales = one_of_each_scale(watched)

    def write(self) -> None:
        """Writes what is known after a step; those that were skipped are counted."""
        for each in self._scales:
            self._write(each, "loss_scale", "skipped_steps")
        for each in self._norms:
            self._write(each, "gradient_norm")

    def _write(self, watched: Watched, *names: str) -> None:
        import tensorflow as tf

        prefix, optimizer = watched
        applied = keras_internals.applied_steps(optimizer.inner_optimizer)
        step = int(applied.numpy()) + int(optimizer.skipped_steps)
        with self._writer.as_default(step=step):
            for name in names:
                value = getattr(optimizer, name).numpy()
                tf.summary.scalar(prefix + name, value.astype("float32"))

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        self._writer.close()
