"""What `scale_loss` and `unscale_gradients` leave for the `apply` that follows."""

import threading
from typing import Any

import keras

from keras_mp.optimizer.backend import backend


class StepNotes:
    """The scale that multiplied the loss, and whether gradients are un-scaled.

    A note counts only in the function in which it was made, branches and loops of it
    included: another may be traced once and run many times.

    Attributes:
        scale: scalar tensor, or None when there is no note.
        unscaled: whether `unscale_gradients` was called.
    """

    scale: Any = None
    unscaled: bool = False
    _used: bool = False
    _function: Any = None
    _is_own: bool = False

    def take(self, scale: Any, unscaled: bool) -> None:
        """Makes a note in the current function, over any earlier one."""
        self.scale, self.unscaled = scale, unscaled
        self._function = backend.current_function()
        self._used, self._is_own = False, True

    def offer(self, scale: Any) -> None:
        """Notes the scale of a loss that may be for several optimizers.

        An optimizer that scales its own loss keeps to that.
        """
        if not (self._is_own and self.is_here()):
            self.take(scale, unscaled=False)
            self._is_own = False

    def is_here(self) -> bool:
        """Tells whether the note was made in the current function."""
        return self.scale is not None and backend.is_part_of(self._function)

    @property
    def awaits_apply(self) -> bool:
        """Whether gradients are un-scaled that no `apply` has taken."""
        return self.unscaled and not self._used

    def use(self) -> None:
        """Forgets the note, unless a branch used it: another one may have to, too."""
        if self.is_here() and self._function != backend.current_function():
            self._used = True
        else:
            self.clear()

    def clear(self) -> None:
        """Forgets the note."""
        self.scale, self.unscaled, self._used = None, False, False
        self._function, self._is_own = None, False


class ReplicaStepNotes(threading.local, StepNotes):
    """Notes of one's own for each thread, since in TensorFlow a replica is a thread."""


def step_notes() -> StepNotes:
    """Returns notes for an optimizer, of a class that the backend's compiler takes."""
    # `torch.compile` cannot trace notes of a thread.
    return (
        ReplicaStepNotes() if keras.backend.backend() == "tensorflow" else StepNotes()
    )
