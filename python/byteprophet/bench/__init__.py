"""Compares schedulers on paced workloads: jobs run in turn, results side by side.

case.py      what is compared, as plain data
runtimes.py  what reduces gradients: BytePS, or something beside it
execute.py   runs the jobs, policies in turn, round after round
result.py    from what workers measured to one row per case
machine.py   the machine beside the figures
cpu.py       how busy it was

grid.py          a grid of cells, read from TOML; grids/ has those that come along
grid_jobs.py     its jobs, and how one is recognised again
grid_phases.py   which jobs a phase has
grid_store.py    their records, on disk
grid_run.py      runs what is missing
grid_report.py grid_figures.py spread.py   from records to figures, noise and targets
"""

from __future__ import annotations

from byteprophet.bench.case import Case, Plan
from byteprophet.bench.execute import run_bench
from byteprophet.bench.machine import describe_machine

__all__ = ["Case", "Plan", "describe_machine", "run_bench"]
