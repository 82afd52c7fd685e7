"""Whether all ranks begin alike: the same parameters under the same names, and rank 0's values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store

_READ_S = 30.0


def check(
    store: Store,
    rank: int,
    size: int,
    named: Sequence[tuple[str, Tensor]],
    options: Mapping[str, Any],
    timeout_s: float,
) -> None:
    """Compare this rank's parameters and ``options`` with the others'; every rank calls it.

    ``store`` is for this comparison only. Rank 0 compares itself with all, the others themselves
    with rank 0. Raises ``ValueError`` that names the first difference, ``RuntimeError`` where a
    rank does not come.
    """
    mine = {
        "options": [f"{name}={value!r}" for name, value in options.items()],
        "parameters": [_text(name, p) for name, p in named],
    }
    store.set(str(rank), json.dumps(mine))
    try:
        _compare_all(store, rank, range(1, size) if rank == 0 else [0], mine, timeout_s)
    except ValueError:
        if rank == 0:  # the store may end with it: the others must have read why they do, too
            with suppress(RuntimeError):
                read = [f"read {other}" for other in range(1, size)]
                store.wait(read, timedelta(seconds=_READ_S))
        raise
    finally:
        store.set(f"read {rank}", "")


def _text(name: str, parameter: Tensor) -> str:
    dtype = str(parameter.dtype).removeprefix("torch.")
    strides = "" if parameter.is_contiguous() else f" with strides {parameter.stride()}"
    return f"'{name}' of {tuple(parameter.shape)} {dtype}{strides}"


def _compare_all(
    store: Store, rank: int, others: Iterable[int], mine: dict[str, list[str]], timeout_s: float
) -> None:
    for other in others:
        try:
            store.wait([str(other)], timedelta(seconds=timeout_s))
        except RuntimeError:
            raise RuntimeError(
                f"byteprophet: waited {timeout_s:g} s for rank {other} to make its "
                "DistributedOptimizer (BYTEPROPHET_TIMEOUT_S sets the limit)"
            ) from None
        theirs = json.loads(store.get(str(other)))
        for what in ("options", "parameters"):
            _compare(what.removesuffix("s"), rank, mine[what], other, theirs[what])


def _compare(what: str, rank: int, mine: list[str], other: int, theirs: list[str]) -> None:
    for number, (own, its) in enumerate(zip_longest(mine, theirs), start=1):
        if own != its:
            raise ValueError(
                f"ranks differ: {what} {number} is {own or 'missing'} on rank {rank}, "
                f"{its or 'missing'} on rank {other}"
            )


def take_first_ranks_values(named: Sequence[tuple[str, Tensor]]) -> None:
    """Give every rank rank 0's parameters; buffers are each rank's own."""
    with torch.no_grad():
        for _, parameter in named:
            distributed.broadcast(parameter.detach(), 0)
