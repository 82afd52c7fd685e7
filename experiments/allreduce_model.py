"""What the model predicts of the all-reduce runtimes: where which of them pays.

    python experiments/allreduce_model.py [--message-cost-us 300]

The DeAR paper's models on links where an all-reduce takes 0.7 to 1.4 times the compute. Iterations
are in units of the compute; the groups are those found from the times, for each runtime its own.
Nothing runs, so this takes a minute; ``free`` is dear with free messages and a group per parameter,
which is what its order can give at best.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

from rich.console import Console
from rich.table import Table
from script import run_script

from byteprophet.allreduce.bounds import bound_ns, dear_ideal_ns, eq7_dear_ns, eq8_allreduce_ns
from byteprophet.allreduce.grouping import best_groups
from byteprophet.allreduce.groups import fixed_size
from byteprophet.allreduce.order import RUNTIMES, iteration_ns
from byteprophet.allreduce.timing import Link, Timing
from byteprophet.workload import load

MODELS = ("resnet50", "densenet201", "inception-v4", "bert-base")
RANKS = (2, 4)
SHARES = (0.7, 0.9, 1.0, 1.2, 1.4)
"""Of the compute that an all-reduce of all gradients takes."""
COLUMNS = (
    *("model", "ranks", "all-reduce", *RUNTIMES, "free", "Eq. 7", "Eq. 8", "bound"),
    *("dear / ideal", "planned / bound", "allreduce / planned"),
)


def timing_of(model: str, ranks: int, share: float, message_cost_ns: int) -> Timing:
    """The model on a link where its all-reduce takes this share of its compute."""
    workload = load(model)
    moved_bits = 8 * workload.size_bytes * 2 * (ranks - 1) / ranks
    compute_ns = workload.forward_ns + workload.backward_ns
    bandwidth_bps = round(moved_bits * 1e9 / (share * compute_ns))
    return Timing.of_workload(workload, Link(ranks, bandwidth_bps, message_cost_ns))


def row(model: str, ranks: int, share: float, message_cost_ns: int) -> list[str]:
    """One line of the table."""
    timing = timing_of(model, ranks, share, message_cost_ns)
    free = timing_of(model, ranks, share, 0)
    times_ns = {
        runtime: iteration_ns(runtime, timing, best_groups(runtime, timing)) for runtime in RUNTIMES
    }
    limits_ns = (
        iteration_ns("dear", free, fixed_size(free, 0)),
        eq7_dear_ns(timing),
        eq8_allreduce_ns(timing),
        bound_ns(timing),
    )
    planned_ns = times_ns["dear-planned"]
    figures = [time_ns / timing.compute_ns for time_ns in (*times_ns.values(), *limits_ns)]
    figures.append(times_ns["dear"] / dear_ideal_ns(timing))
    figures.append(planned_ns / bound_ns(timing))
    figures.append(times_ns["allreduce"] / planned_ns)
    return [model, str(ranks), str(share), *(f"{figure:.3f}" for figure in figures)]


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Predicted iterations of all-reduce runtimes.")
    parser.add_argument("--message-cost-us", type=int, default=300, metavar="US")
    message_cost_ns = 1000 * parser.parse_args(arguments).message_cost_us
    table = Table(*COLUMNS, title="predicted iterations over compute")
    for model, ranks, share in product(MODELS, RANKS, SHARES):
        table.add_row(*row(model, ranks, share, message_cost_ns), end_section=share == SHARES[-1])
    Console(width=180).print(table)


if __name__ == "__main__":
    run_script(main)
