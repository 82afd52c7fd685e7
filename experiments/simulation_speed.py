"""How long the simulator takes, from the model's name to the result, without starting Python.

    python experiments/simulation_speed.py

Prints processor time, the best of five, and the largest resident memory of the process so far. The
last row simulates 1,000 strategies of GPT-3 175B on 1,024 GPUs in one process. Takes two minutes.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

from rich.table import Table
from script import run_script

from byteprophet.report.console import table_console
from byteprophet.simulate.execute.kept import Job
from byteprophet.simulate.execute.search import candidates, collect_rarely, evaluate
from byteprophet.simulate.models.load import load_source

_RUNS = 5
_STRATEGIES = 1000
_JOBS = (
    ("gpt2", "dp=32 micro_batch=2", 32),
    ("gpt2", "dp=128 micro_batch=2", 128),
    ("gpt3-175b", "tp=8 pp=16 micro_batches=192", 1024),
    ("gpt3-175b", "tp=8 pp=16 micro_batches=12", 16384),
    ("mixtral-8x22b", "tp=4 ep=8 pp=4 zero=1 micro_batches=32", 1024),
)


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    collect_rarely()  # as the processes of a search do
    table = Table(box=None, pad_edge=False)
    for name in ("model", "strategy", "GPUs", "seconds", "MB"):
        table.add_column(name, justify="left" if name in ("model", "strategy") else "right")
    for model, line, gpus in _JOBS:
        job = Job(model, "dgx-a100", gpus, batch=1)
        _add(table, model, line, gpus, partial(evaluate, job, load_source(model), line), _RUNS)
    job = Job("gpt3-175b", "dgx-a100", 1024, batch=1536)
    words, source = f"{_STRATEGIES} of a search", load_source(job.model)
    lines = list(islice(cycle(candidates(job, 8, source(1))), _STRATEGIES))
    every = partial(map, partial(evaluate, job, source), lines)
    _add(table, job.model, words, job.gpus, lambda: list(every()), 1)
    table_console().print(table)


def _add(
    table: Table, model: str, words: str, gpus: int, run: Callable[[], object], runs: int
) -> None:
    best_s = float("inf")
    for _ in range(runs):
        began_s = time.process_time()
        run()
        best_s = min(best_s, time.process_time() - began_s)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    table.add_row(model, words, f"{gpus:,}", f"{best_s:.3f}", f"{peak_mb:.0f}")


if __name__ == "__main__":
    run_script(main)
