"""Checks that all ranks have the same parameters by name, and gives them rank 0's values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from byteprophet.errors import UserError
from byteprophet.torch.sync import failures
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.gathering import wait_for_all

_READ_S = 30.0


def check(
    store: Store,
    rank: int,
    size: int,
    named: Sequence[tuple[str, Tensor]],
    options: Mapping[str, Any],
    all_here: Callable[[], None],
) -> None:
    """Compare all ranks' parameters and ``options`` with rank 0's. Every rank must call this.

    ``store`` is used for this comparison only. ``all_here`` returns when all ranks have called it,
    and raises an error if one never will. Raises ``ValueError`` that names the first difference,
    with the same message on all ranks. Raises ``RuntimeError`` if rank 0 does not report a result.
    """
    mine = {
        "options": [f"{name}={value!r}" for name, value in options.items()],
        "parameters": [_text(name, p) for name, p in named],
    }
    if rank == 0:
        all_here()
        found = _first_difference(store, size, mine)
        store.set("found", found)
        if found:  # the store may end with this rank, so the others must read the result first
            with suppress(RuntimeError):
                read = [f"read {other}" for other in range(1, size)]
                store.wait(read, timedelta(seconds=_READ_S))
    else:
        store.set(str(rank), json.dumps(mine))
        all_here()
        try:
            store.wait(["found"], timedelta(seconds=_READ_S))
        except RuntimeError as error:
            raise failures.of_collective(
                error,
                "byteprophet: rank 0 did not report whether all ranks start equally; see its "
                f"output: {str(error).partition(chr(10))[0]}",
            ) from None
        found = store.get("found").decode()
        store.set(f"read {rank}", "")
    if found:
        raise ValueError(found)


def check_group(
    who: str,
    start: str,
    call: Call,
    named: Sequence[tuple[str, Tensor]],
    options: Mapping[str, Any],
    timeout_s: float,
    group: ProcessGroup | None = None,
) -> None:
    """Compare the ranks of ``group`` as ``check`` does, through the default group's store.

    ``start``: the name of this comparison, which is the same on all ranks, and new. ``call``: what
    all ranks do together. Raises ``UserError`` that begins with ``who`` if ranks differ, and
    ``TimedOut`` if one does not come within ``timeout_s`` seconds.
    """
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    store = PrefixStore(start, distributed.distributed_c10d._get_default_store())

    def all_here() -> None:
        wait_for_all(store, rank, size, call, timeout_s)

    try:
        check(store, rank, size, named, options, all_here)
    except ValueError as error:
        raise UserError(f"{who}: {error}") from None


def _text(name: str, parameter: Tensor) -> str:
    dtype = str(parameter.dtype).removeprefix("torch.")
    strides = "" if parameter.is_contiguous() else f" with strides {parameter.stride()}"
    frozen = "" if parameter.requires_grad else ", frozen"
    return f"'{name}' of {tuple(parameter.shape)} {dtype}{strides}{frozen}"


def _first_difference(store: Store, size: int, mine: Mapping[str, Sequence[str]]) -> str:
    """Describe the first difference between ``mine``, rank 0's, and the others; "" if none."""
    for other in range(1, size):
        theirs = json.loads(store.get(str(other)))
        for what, own in mine.items():
            for number, (one, its) in enumerate(zip_longest(own, theirs[what]), start=1):
                if one != its:
                    return (
                        f"ranks differ: {what.removesuffix('s')} {number} is {one or 'missing'} on "
                        f"rank 0, {its or 'missing'} on rank {other}"
                    )
    return ""


def take_first_ranks_values(named: Sequence[tuple[str, Tensor]]) -> None:
    """Broadcast rank 0's parameters to all ranks. Each rank keeps its own buffers."""
    with torch.no_grad():
        for _, parameter in named:
            distributed.broadcast(parameter.detach(), 0)
