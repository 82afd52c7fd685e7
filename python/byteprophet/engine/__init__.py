"""Simulated jobs: the policies that run, on a virtual clock and network.

job.py      what is simulated, as plain data, and what came out of it
layout.py   a workload as the core's arrays: partitions, their servers, times
sweep.py    settings ranked by what they make of a job

The model, and what in it is an approximation, is at the top of prophet/engine/job.h. Like a bench's
cases, jobs are given by the rate that a link is configured to; the core gets its payload share.
"""

from __future__ import annotations

from byteprophet.engine.job import Costs, SimulatedJob, SimulatedRun, simulate
from byteprophet.engine.sweep import rank_settings, sweep, tuning_grid

__all__ = [
    "Costs",
    "SimulatedJob",
    "SimulatedRun",
    "rank_settings",
    "simulate",
    "sweep",
    "tuning_grid",
]
