"""All ranks come to one point of a script, or an error names those that have not.

A collective of a process group that one rank never begins only ends with the group's time limit,
and does not say who is missing. So before one that a script's call needs, ranks meet in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from byteprophet.errors import TimedOut
from byteprophet.torch.sync import failures
from byteprophet.torch.sync.completion import Call, ranks


def wait_for_all(store: Store, rank: int, size: int, call: Call, timeout_s: float) -> None:
    """Wait until all ranks have called this with a store of their own for this one ``call``.

    Raises ``TimedOut`` after ``timeout_s`` seconds, which names the ranks that are missing, and
    ``PeerLost`` if the store is gone with the rank that kept it.
    """
    here = [f"here {other}" for other in range(size)]
    try:
        store.set(here[rank], "")
        late = _late(store, here, timeout_s)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise failures.of_collective(
            error,
            "byteprophet: the ranks' store cannot be reached, so the rank that keeps it has "
            f"probably ended; see its output: {line}",
        ) from None
    if late is not None:
        raise TimedOut(
            f"byteprophet: waited {timeout_s:g} s; {ranks(late or [rank])} not {call.done}: all "
            f"ranks must do so together{call.advice} (BYTEPROPHET_TIMEOUT_S sets the limit)"
        )


def _late(store: Store, here: Sequence[str], timeout_s: float) -> list[int] | None:
    """The ranks whose keys, ``here``, do not come within ``timeout_s``; None: all have come."""
    try:
        store.wait([*here], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        if not failures.is_timeout(error):
            raise
        return [rank for rank, key in enumerate(here) if not store.check([key])]
    return None
