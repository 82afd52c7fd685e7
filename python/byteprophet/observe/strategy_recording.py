"""Writes the buckets that a job without servers uses to a file (``job/strategy_file.py``).

Rank 0 does so in a job with a run directory whenever the buckets change: a few times per job. In a
job with servers, it writes the strategy that the job was given, if that changes or delays
gradients. If the file cannot be written, it warns once and training continues.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from byteprophet.job import Model, Parameter, Strategy
from byteprophet.job.strategy_file import Used, strategy_path, write_strategy
from byteprophet.whole_files import OneWarning

RUN = "BYTEPROPHET_RUN"

_or_else = OneWarning("the buckets in use are not saved; training continues")


def record_strategy(
    strategy: Strategy,
    sizes_bytes: Mapping[str, int],
    since: int,
    optimizer: int = 0,
    environment: Mapping[str, str] = os.environ,
    *,
    frozen: Container[str] = (),
) -> None:
    """Records that ``strategy`` is in use from iteration ``since`` on, counted from 1.

    ``sizes_bytes`` has the sizes of all parameters, in forward order. ``optimizer`` is the index of
    the optimizer among those of the process. ``frozen``: the names of those that are not trained.
    """
    run = environment.get(RUN)
    if not run:
        return
    model = Model(
        tuple(Parameter(name, size, frozen=name in frozen) for name, size in sizes_bytes.items())
    )
    used = Used(model, strategy, since)
    with _or_else.instead():
        write_strategy(strategy_path(Path(run), optimizer), used)


def record_given(used: Used, rank: int, environment: Mapping[str, str] = os.environ) -> None:
    """Records, on rank 0 of a job with servers, that its optimizer was given a strategy."""
    run = environment.get(RUN)
    if run and rank == 0:
        with _or_else.instead():
            write_strategy(strategy_path(Path(run)), replace(used, since=1))
