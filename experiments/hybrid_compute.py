"""What operators take in one iteration of a job of ``hybrid.py``: paced, and as the simulator says.

The paced time is the sum of the times that were measured for each operator that a rank calls. It
does not depend on links, nor on what else runs. So it tells errors of the simulator's
costs of operators from those of everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hybrid_operators import Table, numbers_from

from byteprophet.simulate.clusters.description import Cluster
from byteprophet.simulate.compile.program import Program
from byteprophet.simulate.compile.steps import Compute
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.simulate import block_costs, simulate_program
from byteprophet.simulate.operation.operator import Kind

PARTS = ("products", "attention", "other", "optimizer", "copies")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_COPIES = ("cat", "clone", "copy_", "contiguous", "add_")
"""``add_``: what adds up gradients of several micro-batches."""


def paced_ns(rows: Iterable[Any], table: Table) -> Counter[str]:
    """The time of an iteration's operators by part; ``rows``: of ``hybrid_operators.as_rows``."""
    found: Counter[str] = Counter()
    for operation, count in numbers_from(rows).items():
        if operation in table:
            found[_part(operation.name)] += count * table[operation].time_ns
    return found


def _part(name: str) -> str:
    space, packet, _ = name.split(".")
    if packet in _PRODUCTS:
        return "products"
    if "scaled_dot_product" in packet:
        return "attention"
    if packet.startswith(("_foreach", "_fused")):
        return "optimizer"
    return "copies" if space == "fsdp" or packet in _COPIES else "other"


def simulated_ns(program: Program, cluster: Cluster, pp_rank: int) -> Counter[str]:
    """What the simulator says of the same."""
    strategy = program.strategy
    roofline = block_costs(program, cluster).roofline
    found: Counter[str] = Counter()
    for stage in program.stages[pp_rank :: strategy.mesh.pp]:
        for block in stage.blocks:
            for step in (*block.compiled.forward, *block.compiled.backward):
                if isinstance(step, Compute):
                    takes_ns = strategy.micro_batches * roofline.time_ns(step)
                    found[_PARTS.get(step.operator.kind, "other")] += round(takes_ns)
    spent: Counter[Spent] = Counter()
    for one in simulate_program(program, cluster).job.ranks[pp_rank].spent:
        spent.update(one.by_use)
    passes = spent[Spent.FORWARD] + spent[Spent.BACKWARD] + spent[Spent.RECOMPUTE]
    found["optimizer"] = spent[Spent.OPTIMIZER]
    # What adds up gradients is a part of the backward passes.
    found["copies"] = spent[Spent.COPIES] + passes - sum(found[part] for part in PARTS[:3])
    return found


_PARTS = {Kind.MATMUL: "products", Kind.ATTENTION: "attention"}
