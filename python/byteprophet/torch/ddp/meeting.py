"""Ranks agree that all of them are at the same point, before another exchange takes gradients over.

A forward pass of DistributedDataParallel needs no other rank, but taking a model over does. One
rank may be there alone: it evaluates before it trains, or the others have no BYTEPROPHET_SYNC and
know nothing of us. It must not wait for ever, and it must not decide alone. So ranks meet in the
store of their process group. The last one to come says that all go on. One that has waited too long
says that none does. The first verdict counts, because ``Store.add`` is atomic, and those who come
later find it there.
"""

from __future__ import annotations

import time
from typing import Any

from byteprophet.torch.sync.completion import ranks

_GO_ON = "go on"
_POLL_S, _LONGEST_POLL_S = 0.002, 0.05


def meet(
    store: Any, name: str, rank: int, size: int, says: str, done: str, patience_s: float
) -> str:
    """Wait until all ranks have come, for at most ``patience_s``.

    Args:
        store: the store of the process group.
        name: of the meeting, the same on all ranks, and different for each meeting.
        rank: this rank.
        size: how many ranks there are.
        says: what must be the same on all ranks.
        done: what ranks have done that come in time, for messages: "begun the pass within 60 s".
        patience_s: the longest wait, in seconds.

    Returns:
        Nothing if all ranks have come and said the same. Otherwise why not; then all ranks get a
        reason, whenever they come.
    """
    prefix = f"byteprophet.ddp/{name}"
    verdict = f"{prefix}/verdict"
    store.set(f"{prefix}/says/{rank}", says)
    if store.add(f"{prefix}/come", 1) == size:
        _decide(store, prefix, _GO_ON)
    end_s = time.monotonic() + patience_s
    poll_s = _POLL_S
    while not store.check([verdict]):
        if time.monotonic() > end_s:
            late = [r for r in range(size) if not store.check([f"{prefix}/says/{r}"])]
            who = ranks(late) if late else "another rank has"
            _decide(store, prefix, f"{who} not {done}")
            end_s = float("inf")  # whoever decided first sets the verdict at once
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, _LONGEST_POLL_S)
    found = store.get(verdict).decode()
    if found != _GO_ON:
        return str(found)
    said = [store.get(f"{prefix}/says/{r}").decode() for r in range(size)]
    for other, text in enumerate(said):
        if text != said[0]:
            return f"ranks differ: rank 0 has {said[0]}, rank {other} has {text}"
    return ""


def _decide(store: Any, prefix: str, verdict: str) -> None:
    """Set the verdict, unless another rank has decided."""
    if store.add(f"{prefix}/decisions", 1) == 1:
        store.set(f"{prefix}/verdict", verdict)
