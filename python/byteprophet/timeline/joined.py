"""Matches pushes at a server with the transfers of workers.

Both sides count: the n-th transfer of a key by one worker is round n of that worker and key at the
server, so no clock is needed. The plug-in records rounds. Older files have none, so rounds are
counted here. This is correct because a key's next transfer begins only after the previous one has
completed and been recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.order_statistics import distinct
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS

Where = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""For each transfer, the table's index and the row of its push at the server; -1: not known."""

_Ints = npt.NDArray[np.int64]
_WORKER = re.compile(r"worker-(?P<number>\d+)(\.\d+)?")


def served_rows(events: Sequence[Events]) -> Mapping[int, Where]:
    """Where the rows of each table of transfers were served, by the table's index in ``events``.

    Each rank has one table (``lives.py``). Transfers of an unknown round have no match.
    """
    tables = [index for index, table in enumerate(events) if table.table is SERVED_TABLE]
    workers, keys, rounds, index_of, row_of = (
        np.concatenate([np.zeros(0, np.int64), *columns])
        for columns in (
            [events[index].rows["worker"].astype(np.int64) for index in tables],
            [events[index].rows["key"].astype(np.int64) for index in tables],
            [events[index].rows["round"].astype(np.int64) for index in tables],
            [np.full(len(events[index].rows), index) for index in tables],
            [np.arange(len(events[index].rows)) for index in tables],
        )
    )
    found: dict[int, Where] = {}
    sent = [index for index, table in enumerate(events) if table.table is TRANSFERS]
    numbers = worker_numbers([events[index] for index in sent])
    for worker, index in zip(numbers, sent, strict=True):
        mine = np.flatnonzero((workers == worker) & (rounds > 0))
        own_keys = events[index].rows["key"].astype(np.int64)
        matched = _match(own_keys, _rounds(events[index]), keys[mine], rounds[mine])
        at = np.where(matched >= 0, np.append(mine, -1)[matched], -1)
        found[index] = (np.append(index_of, -1)[at], np.append(row_of, -1)[at])
    return found


def worker_numbers(tables: Sequence[Events]) -> list[int]:
    """The numbers by which servers know the workers that recorded ``tables``.

    They come from the roles' names; some workers may be missing. If a name has no number, the order
    of the ranks decides. If two tables get the same number, they are not from one job, and all
    numbers are -1.
    """
    said = [_WORKER.fullmatch(table.origin.role) for table in tables]
    ranks = [table.origin.rank for table in tables]
    numbers = [int(one["number"]) for one in said if one]
    if len(numbers) < len(tables):
        numbers = [sorted(ranks).index(rank) for rank in ranks]
    return numbers if len(set(numbers)) == len(tables) else [-1] * len(tables)


def _rounds(transfers: Events) -> _Ints:
    rounds: _Ints = transfers.rows["round"].astype(np.int64)
    if rounds.any() or transfers.lost:
        return rounds
    return _count(transfers.rows["key"].astype(np.int64))


def _count(keys: _Ints) -> _Ints:
    """1-based occurrence index of each key among equal keys."""
    order = np.argsort(keys, kind="stable")
    first = np.append(True, np.diff(keys[order]) != 0)[: len(keys)]
    places = np.arange(len(keys))
    counts = np.zeros(len(keys), np.int64)
    counts[order] = places - np.maximum.accumulate(np.where(first, places, 0)) + 1
    return counts


def _match(keys: _Ints, rounds: _Ints, other_keys: _Ints, other_rounds: _Ints) -> _Ints:
    """The index of each pair of key and round among the other pairs, or -1."""
    known = distinct(np.concatenate([keys, other_keys]))
    codes = np.searchsorted(known, keys) << 32 | rounds
    others = np.searchsorted(known, other_keys) << 32 | other_rounds
    order = np.argsort(others, kind="stable")
    places = np.searchsorted(others[order], codes)
    hits = np.append(others[order], -1)[places] == codes
    matched: _Ints = np.where(hits, np.append(order, -1)[places], -1)
    return matched
