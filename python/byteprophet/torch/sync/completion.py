"""Waits for one call of a synchroniser, by means of its ``done`` callback.

All ranks must make calls that involve other ranks. So when a wait times out, its error names the
missing ranks and the call that they have not made (``Call``).

Threads: whoever waits. They share ``_patience`` without a lock: at worst, one more wait is
reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from byteprophet.errors import TimedOut, because_of
from byteprophet.torch.sync.patience import Patience

Done = Callable[[BaseException | None], None]
"""Called once when an operation is over: with its error, or with None."""
_patience = Patience()


@dataclass(frozen=True)
class Call:
    """A call of the script that all ranks must make together, as messages describe it.

    ``done`` completes the sentence "rank 1 has not ...". ``of`` names what is exchanged. ``advice``
    names an alternative.
    """

    done: str
    of: str = "gradients"
    advice: str = ""


STEP = Call("called step() as often")
SYNCHRONIZE = Call("called synchronize()")
STATE_DICT = Call("called state_dict()", "state", "; or use sharded_state_dict()")


def called(function: Callable[..., object]) -> Call:
    """The call of ``function``, which exchanges gradients."""
    return Call(f"called {function.__name__}()")


class Awaited(Protocol):
    """The part of ``Synchroniser`` that is used here."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    def awaited(self, name: str) -> str:
        """Name who or what ``name`` seems to wait for, for messages."""
        ...

    def late(self, name: str) -> list[int]:
        """The ranks whose part of ``name`` has not arrived, as far as is known."""
        ...


class Completion:
    """A ``done`` callback that can be waited for.

    Messages name ``what`` is waited for and the ``call`` that all ranks must make.
    """

    def __init__(self, what: str, call: Call) -> None:
        self._what = what
        self._call = call
        self._over = threading.Event()
        self._error: BaseException | None = None

    def __call__(self, error: BaseException | None) -> None:
        """Note that the call is over, with an error or None, and wake the waiting thread."""
        self._error = error
        self._over.set()

    def arrives_within(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds. True if the call is over, even if it failed."""
        return self._over.wait(timeout_s)

    def wait(self, timeout_s: float, synchroniser: Awaited, name: str) -> None:
        """Wait until the call is over. A long wait is reported while it lasts.

        ``name`` is what was submitted to ``synchroniser``. Raises ``TimedOut`` if it is not over
        after ``timeout_s`` seconds, and ``RuntimeError`` or ``PeerLost`` if it failed.
        """

        def awaited() -> str:
            return f"the {self._what}: {synchroniser.awaited(name)}"

        if not _patience.wait(self.arrives_within, timeout_s, synchroniser.rank, awaited):
            late = synchroniser.late(name)
            who = ranks(late) if late else f"{synchroniser.awaited(name)}, or another rank has"
            raise TimedOut(
                f"byteprophet: waited {timeout_s:g} s for the {self._what}; {who} not "
                f"{self._call.done}: all ranks must do so together{self._call.advice} "
                "(BYTEPROPHET_TIMEOUT_S sets the limit)"
            )
        if self._error is not None:
            why = f"byteprophet: the {self._what} could not be exchanged: {self._error}"
            if self._call is not STEP:
                done, advice = self._call.done, self._call.advice
                why += f" (this rank has {done}: all ranks must do so together{advice})"
            raise because_of(self._error, why) from self._error


def ranks(numbers: list[int]) -> str:
    """The subject of a sentence: "rank 1 has", "ranks 1 and 3 have"."""
    if len(numbers) == 1:
        return f"rank {numbers[0]} has"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]} have"
