"""Local SGD: ranks update by their own gradients, and average parameters every H steps.

No gradient is exchanged. Every step runs the optimizer's own code on this rank's gradients. After
every H-th one, all parameters are averaged over the ranks, as gradients otherwise are: bucket by
bucket, and modules of the next forward pass wait for their own parameters. The state of the
optimizer stays each rank's own. Between two averages, ranks have parameters of their own, too.

A state that is saved between two averages says how many steps came since the last one. So a job
that loads it, and the model of the same rank, goes on as if it had not been interrupted.

Threads: the training thread calls everything. The updater ends an average as it ends an update
(``updates.py``), so that whoever reads a parameter waits for it. The exchange writes to the memory
of a parameter from when it is submitted. Nobody reads it from then on without waiting, because the
training thread submits all parameters and hands them to the updater in one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from byteprophet.errors import warn
from byteprophet.torch.front.view_step import FrozenStep

SINCE = "byteprophet_local_steps"
"""The key under which a state has the number of steps since the last average, if there are any."""
OWN_STATE = "a state that is saved now is this rank's own"
"""What ``warn_apart`` says where a state is saved."""


class LocalSgd:
    """Counts the steps of one optimizer; 0 ``steps``: it averages gradients in every step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0  # steps since parameters were averaged
        self._warned: set[str] = set()

    def __bool__(self) -> bool:
        """Whether parameters are averaged in place of gradients."""
        return self._steps > 0

    def count(self) -> bool:
        """Count a step. Returns whether parameters are averaged after it."""
        self._done = (self._done + 1) % self._steps
        return not self._done

    def saved(self) -> dict[str, int]:
        """What a state must have besides. Warns once if ranks have different parameters now."""
        self.warn_apart(OWN_STATE)
        return {SINCE: self._done} if self._done else {}

    def warn_apart(self, consequence: str) -> None:
        """Warn once of each ``consequence`` if ranks have different parameters now."""
        if self._done and consequence not in self._warned:
            self._warned.add(consequence)
            warn(
                f"local SGD: {self._done} of {self._steps} steps were made since parameters were "
                f"averaged: {consequence}"
            )

    def checked(self, state: Mapping[str, Any], call: str) -> int:
        """The number of steps since the last average, in a ``state`` that ``call`` loads.

        Raises ``ValueError`` if the strategy would have averaged before.
        """
        done = state.get(SINCE, 0)
        if type(done) is not int or not 0 <= done < max(1, self._steps):
            every = f"every {self._steps} steps" if self else "in no step"
            raise ValueError(
                f"{call}: it was saved {done} steps after an average of parameters, and here they "
                f"are averaged {every}: save it after an average, or: del state[{SINCE!r}]"
            )
        return done

    def load(self, done: int) -> None:
        """Go on ``done`` steps after an average."""
        self._done = done


def only_averaged(step: FrozenStep) -> FrozenStep:
    """``step`` for parameters that are averages already: it changes nothing."""
    return replace(step, step=_nothing)


def _nothing(_view: Any) -> None:
    return
