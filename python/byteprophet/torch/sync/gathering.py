"""All ranks come to one point of a script, or an error names those that have not.

A collective of a process group that one rank never begins only ends with the group's time limit,
and does not say who is missing. So before one that a script's call needs, ranks meet in the store.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from byteprophet.errors import TimedOut
from byteprophet.torch.sync.completion import Call, ranks


def wait_for_all(store: Store, rank: int, size: int, call: Call, timeout_s: float) -> None:
    """Wait until all ranks have called this with a store of their own for this one ``call``.

    Raises ``TimedOut`` after ``timeout_s`` seconds, which names the ranks that are missing.
    """
    here = [f"here {other}" for other in range(size)]
    store.set(here[rank], "")
    try:
        store.wait(here, timedelta(seconds=timeout_s))
    except RuntimeError:
        late = [other for other in range(size) if not store.check([here[other]])]
        raise TimedOut(
            f"byteprophet: waited {timeout_s:g} s; {ranks(late or [rank])} not {call.done}: all "
            f"ranks must do so together{call.advice} (BYTEPROPHET_TIMEOUT_S sets the limit)"
        ) from None
