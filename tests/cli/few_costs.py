"""``few_costs.py ARGUMENT...``: the command ``byteprophet`` where a CPU's costs are soon measured.

All shapes, each with as many tensors as are in no cache, take it a minute.
"""

from __future__ import annotations

import sys

from byteprophet.cli.main import run_cli
from byteprophet.simulate.costs import (
    collect,
    collect_kernels,
    collect_operators,
    taking_turns,
)


def measure_few() -> None:
    """Two of the sizes of products, two lengths and one shape, each with the same tensors again."""
    taking_turns._BEYOND_CACHES["cpu"] = 0
    collect._SIZES["cpu"] = collect._SIZES["cpu"][:2]
    collect_kernels._LENGTHS["cpu"] = collect_kernels._LENGTHS["cpu"][:2]
    collect_kernels._SIZES["cpu"] = collect_kernels._SIZES["cpu"][:2]
    collect_operators._SHAPES["cpu"] = collect_operators._SHAPES["cpu"][:1]


if __name__ == "__main__":
    measure_few()
    sys.exit(run_cli(sys.argv[1:]))
