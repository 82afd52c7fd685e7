"""Compares schedulers on paced workloads: jobs run in turn, results side by side.

case.py      what is compared, as plain data
execute.py   runs the jobs, policies in turn, round after round
result.py    from what workers measured to one row per case
machine.py   the machine beside the figures
"""

from __future__ import annotations

from byteprophet.bench.case import Case, Plan
from byteprophet.bench.execute import run_bench
from byteprophet.bench.machine import describe_machine

__all__ = ["Case", "Plan", "describe_machine", "run_bench"]
