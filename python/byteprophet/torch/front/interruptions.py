"""Detects when compilation makes overlap useless, because all updates must end before it.

While an update is outstanding, torch treats its parameter as a tensor of another class, and would
compile again for the plain class later. So all updates must end before torch begins to compile.
Modules wait for their parameters before their compiled code runs. But a compiled function that
reads parameters without calling their modules is compiled again in every iteration. In that case,
``step()`` should wait for the updates instead.
"""

from __future__ import annotations

import warnings

_MOST = 3  # consecutive interrupted iterations after which step() waits


class Interruptions:
    """Counts interruptions of one optimizer. The training thread calls all methods."""

    def __init__(self) -> None:
        self._latest = -1  # the number of steps at the latest interruption
        self._in_a_row = 0  # consecutive iterations with an interruption

    @property
    def are_usual(self) -> bool:
        """Whether updates are interrupted in every iteration."""
        return self._in_a_row >= _MOST

    def note(self, steps: int) -> None:
        """Note that updates ended early for a compiler, after ``steps`` steps.

        Warns when this has happened in several consecutive iterations.
        """
        if self._latest == steps:
            return
        self._in_a_row = self._in_a_row + 1 if self._latest == steps - 1 else 1
        self._latest = steps
        if self._in_a_row == _MOST:
            warnings.warn(
                "byteprophet: a compiled function reads parameters that no module call waits for: "
                "step() waits for all updates from now on; compile modules instead",
                stacklevel=3,
            )
