"""Where the defaults of docs/policies.md come from: settings over 792 simulated cells.

    python experiments/policy_defaults.py [SCHEDULER[:NAME=VALUE,...] ...]

Eleven networks, four of them generated; one-way communication 0.3 to 2 times the compute; 2 workers
and 1 server, 3 and 2; six pairs of message cost and delay. Printed is the geometric mean of the
iteration time over the bound, and the worst, over all cells and for each pair. About 3 s a row.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, product

import numpy as np
from script import run_script, scheduler_with_settings

from byteprophet.bench.grid import Cell
from byteprophet.engine import paced_job, simulate
from byteprophet.job import Costs
from byteprophet.workload import load

NETWORKS = (
    *("resnet18", "resnet50", "resnet152", "inception-v3", "vgg19", "bert-base", "gpt2"),
    *(f"random:{seed}" for seed in range(1, 5)),
)
COMMUNICATION = (0.3, 0.5, 0.9, 1.0, 1.3, 2.0)
ROLES = ((2, 1), (3, 2))
COSTS_US = ((5, 10), (30, 200), (100, 400), (30, 2000), (500, 500), (100, 5000))
"""Message cost, delay."""
DEFAULT = (
    *(f"p3:outstanding_messages={n}" for n in (2, 4, 8, 16)),
    "bytescheduler",
    "bytescheduler:partition_bytes=524288,credit_bytes=1048576",
    "bytescheduler:partition_bytes=1048576,credit_bytes=4194304",
    "bytescheduler:partition_bytes=4000000,credit_bytes=16000000",
    "bytescheduler-reduce",
    "prophet-paper:partition_bytes=524288",
    "prophet-paper",
    "prophet-paper:partition_bytes=4096000",
    "prophet",
    "prophet:partition_bytes=131072",
    "prophet:partition_bytes=524288",
    "prophet:partition_bytes=1048576",
    "prophet:window_max_bytes=4194304",
)


def ratios(scheduler: str, cost_us: int, delay_us: int) -> list[float]:
    """Iteration time over the bound in every cell with these costs."""
    name, settings = scheduler_with_settings(scheduler)
    costs = Costs(delay_ns=1000 * delay_us, message_cost_ns=1000 * cost_us)
    found = []
    for network, communication, (workers, servers) in product(NETWORKS, COMMUNICATION, ROLES):
        workload = load(network)
        job = paced_job(
            workload,
            name,
            settings,
            workers=workers,
            servers=servers,
            bandwidth_bps=Cell(network, communication).bandwidth_bps(workload),
            costs=costs,
        )
        found.append(simulate(job, iterations=2, warmup_iterations=3).bound_ratio)
    return found


def cell(values: list[float]) -> str:
    """Geometric mean and worst."""
    return f"{np.exp(np.mean(np.log(values))):.3f} {max(values):.2f}"


def main(arguments: Sequence[str]) -> None:
    """Print one row per scheduler."""
    parser = argparse.ArgumentParser(description="Settings of policies over simulated cells.")
    parser.add_argument("schedulers", nargs="*", metavar="SCHEDULER[:NAME=VALUE,...]")
    pairs = (f"{cost}/{delay} us" for cost, delay in COSTS_US)
    print("all cells", *pairs, "settings", sep="\t")
    for scheduler in parser.parse_args(arguments).schedulers or DEFAULT:
        by_costs = [ratios(scheduler, *pair) for pair in COSTS_US]
        print(cell([*chain(*by_costs)]), *map(cell, by_costs), scheduler, sep="\t", flush=True)


if __name__ == "__main__":
    run_script(main)
