"""Processes of a search that end before they have done anything."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from functools import partial

import pytest

from byteprophet.errors import JobFailed
from byteprophet.simulate.execute.processes import in_processes


class _Late:
    """A number that is sent when the process that it is sent to has ended."""

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        for process in multiprocessing.active_children():
            process.join()
        return int, ()


@pytest.mark.parametrize("item", [1, _Late()], ids=["unread", "unsent"])
def test_a_process_that_ends_before_it_reads_is_told(item: object) -> None:
    """Its pipe is reset, as items were left in it; or it is closed when they are sent."""
    items: Sequence[object] = [item]
    with pytest.raises(JobFailed, match=r"has ended with status 9; .* may have lacked memory"):
        list(in_processes(repr, items, processes=1, together=1, begin=partial(sys.exit, 9)))
