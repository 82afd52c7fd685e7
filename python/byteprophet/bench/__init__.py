"""Compares schedulers on paced workloads. Their jobs alternate, and results are shown side by side.

case.py      what is compared, as plain data
runtimes.py  what reduces gradients: BytePS or another runtime
execute.py   runs the jobs: in each round one job of every policy
result.py    makes one row per case from what workers measured
cpu.py       how busy the machine was

grid.py          a grid of cells, read from TOML; grids/ has the built-in ones
grid_jobs.py     the jobs of a grid, and how a job is recognised again
grid_phases.py   the jobs of each phase
grid_store.py    the records of jobs, on disk
grid_run.py      runs the jobs that are missing
grid_report.py grid_figures.py spread.py   figures, noise and targets from records
"""

from __future__ import annotations

from byteprophet.bench.case import Case, Plan
from byteprophet.bench.execute import run_bench
from byteprophet.machine import describe_machine

__all__ = ["Case", "Plan", "describe_machine", "run_bench"]
