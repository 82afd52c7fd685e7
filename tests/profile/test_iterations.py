"""Transfers become iterations, each once and whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from byteprophet.profile.iterations import Collector, summarize
from byteprophet.timeline.tables import TRANSFER

READY = {0: 9_000_000, 1: 4_000_000, 5: 0}


def test_a_tensor_is_ready_with_its_first_partition(virtual_job: Any) -> None:
    transfers = virtual_job(READY).iterate()
    found = summarize(1, transfers)
    assert found is not None
    assert found.tensors.tolist() == [0, 1, 5]
    assert found.ready_ns.tolist() == [9_000_000, 4_000_000, 0]
    assert found.size_bytes.tolist() == [2000, 4000, 12000]
    assert found.priority.tolist() == [-1, -2, -6]
    assert found.first_ready_ns == transfers["ready_ns"].min()


def test_what_has_no_place_in_forward_order_is_left_out(virtual_job: Any) -> None:
    transfers = virtual_job(READY).iterate()
    transfers["priority"] = 0
    assert summarize(1, transfers) is None


@pytest.mark.parametrize("piece", [1, 5, 7, 1000])
def test_handed_out_once_and_whole_however_it_comes(virtual_job: Any, piece: int) -> None:
    job = virtual_job(READY)
    every = np.concatenate([job.iterate() for _ in range(6)])
    collector, found = Collector(), []
    for begin in range(0, len(every), piece):
        part = every[begin : begin + piece]
        found += list(collector.take(part, int(part["iteration"].max())))
    found += list(collector.take(np.empty(0, TRANSFER), 8))
    assert [iteration.number for iteration in found] == [1, 2, 3, 4, 5, 6]
    assert all(iteration.ready_ns.tolist() == [9_000_000, 4_000_000, 0] for iteration in found)
    assert not list(collector.take(np.empty(0, TRANSFER), 100))


def test_the_one_under_way_is_kept_back(virtual_job: Any) -> None:
    collector = Collector()
    assert not list(collector.take(virtual_job(READY).iterate(), 2))
    assert len(list(collector.take(np.empty(0, TRANSFER), 3))) == 1
