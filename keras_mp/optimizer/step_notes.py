"""Notes that `scale_loss` and `unscale_gradients` leave for the next `apply`."""

import threading
from collections.abc import Set
from typing import Any

import keras
from keras import ops

from keras_mp.optimizer.backend import backend


class StepNotes:
    """The scale that multiplied the loss, and whether gradients are unscaled.

    A note is valid only in the function in which it was made and in branches and loop
    bodies of that function: another function may be traced once and run many times.

    The scale of a loss holds for several `apply`, of different variables: the first has
    moved the current scale when the second divides. A second `apply` of the same
    variables is of another loss, scaled in some other function.

    Attributes:
        scale: scalar tensor, or None when there is no note.
        check: `GradientCheck` of `unscale_gradients`, or None if it was not called.
    """

    scale: Any = None
    check: Any = None
    _used: bool = False
    _applied: frozenset[int] = frozenset()
    _function: Any = None
    _is_own: bool = False

    @property
    def unscaled(self) -> bool:
        """Whether `unscale_gradients` was called."""
        return self.check is not None

    def take(self, scale: Any, check: Any = None) -> None:
        """Makes a note in the current function, which replaces any earlier one."""
        self.scale, self.check = scale, check
        self._function = backend.current_function()
        self._used, self._is_own = False, True
        self._applied = frozenset()

    def offer(self, scale: Any) -> None:
        """Notes the scale of a loss that another optimizer has scaled.

        The loss may be for both; an optimizer that scaled its own keeps that scale.
        """
        if not (self._is_own and not self._applied and self._is_here()):
            self.take(scale)
            self._is_own = False

    def scale_of_loss(self, current: Any) -> Any:
        """Returns the scale that the loss of this step was multiplied by.

        Not always the current one: another optimizer that shares the scale may have
        changed it since.

        Args:
            current: the variable that holds the current scale. If no loss was scaled, a
                copy of it is returned, which nobody can change.
        """
        return self.scale if self._is_here() else ops.copy(current)

    def divisor(self, current: Any, indices: Set[int]) -> Any:
        """Returns the scale that `apply` must divide by, None if that has been done.

        Args:
            current: as for `scale_of_loss`.
            indices: set of int, the positions of the variables in the optimizer.

        Raises:
            RuntimeError: gradients were unscaled in another function.
        """
        if self.unscaled and self._is_here():
            return None
        if not self._awaits_apply:
            if self._applied & indices:
                self._clear()
            return self.scale_of_loss(current)
        self._clear()
        raise RuntimeError(
            "`unscale_gradients` and `apply` must be called in the same function, or "
            "`apply` cannot know that the gradients are unscaled. Received: calls in "
            "two functions, of which at least one is a tf.function. Move both into it; "
            "`apply` may stand in a branch or loop after `unscale_gradients`."
        )

    def check_not_unscaled(self) -> None:
        """Checks that gradients of this step have not been unscaled yet.

        Raises:
            RuntimeError: they have.
        """
        if self._awaits_apply and self._is_here():
            raise RuntimeError(
                "The gradients of a step must be unscaled once. Received: a second "
                "call of `unscale_gradients` before `apply`. Call it once, on all "
                "gradients; to add up gradients of several batches set "
                "`gradient_accumulation_steps` on the inner optimizer."
            )

    def use(self, indices: Set[int]) -> None:
        """Notes an `apply`. What a branch used, another branch may also use.

        Args:
            indices: as for `divisor`.
        """
        if not self._is_here():
            self._clear()
        elif self._function != backend.current_function():
            self._used = True
        else:
            self.check, self._applied = None, self._applied | indices

    def _is_here(self) -> bool:
        """Tells whether the note was made in the current function."""
        return self.scale is not None and backend.is_part_of(self._function)

    @property
    def _awaits_apply(self) -> bool:
        """Whether gradients have been unscaled and not applied."""
        return self.unscaled and not self._used

    def _clear(self) -> None:
        self.scale, self.check, self._used = None, None, False
        self._function, self._is_own, self._applied = None, False, frozenset()


class ReplicaStepNotes(threading.local, StepNotes):
    """Notes, separate for each thread: in TensorFlow a replica is a thread."""


def step_notes() -> StepNotes:
    """Returns notes for an optimizer, of a class that the backend's compiler takes."""
    # `torch.compile` cannot trace notes of a thread.
    return (
        ReplicaStepNotes() if keras.backend.backend() == "tensorflow" else StepNotes()
    )
