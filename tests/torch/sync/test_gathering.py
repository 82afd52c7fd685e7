"""Ranks come to one point of a script."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore, TCPStore

from byteprophet.errors import PeerLost, TimedOut
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.gathering import wait_for_all

_CALL = Call("come", advice=", or none of them")


def test_all_ranks_pass_when_the_last_one_has_come() -> None:
    store = HashStore()
    others = [
        threading.Thread(target=wait_for_all, args=(store, rank, 3, _CALL, 20.0)) for rank in (1, 2)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(0.1)
        assert other.is_alive()
    wait_for_all(store, 0, 3, _CALL, 20.0)
    for other in others:
        other.join()


def test_those_that_have_not_come_are_named() -> None:
    store = HashStore()
    store.set("here 1", "")
    with pytest.raises(TimedOut, match=r"ranks 2 and 3 have not come: .* or none of them"):
        wait_for_all(store, 0, 4, _CALL, 0.05)


def test_a_store_that_is_gone_is_said_to_be() -> None:
    """Rank 0, which keeps it, has ended."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = TCPStore("127.0.0.1", kept.port, is_master=False)
    del kept
    with pytest.raises(PeerLost, match="the ranks' store cannot be reached"):
        wait_for_all(store, 1, 2, _CALL, 20.0)
