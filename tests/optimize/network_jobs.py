"""A small network, and recorded jobs that train it: as short as those that read them allow.

Every trial and every round of ``byteprophet optimize`` runs the recorded command again, as long.
"""

from __future__ import annotations

from pathlib import Path

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case
from byteprophet.job.strategy import BYTEPS
from byteprophet.workload import Tensor, Workload, to_toml

NETWORK = Workload(
    name="small",
    batch_size=4,
    tensors=tuple(
        Tensor(f"layer{number}.weight", 60_000, 4_000_000, 8_000_000) for number in range(10)
    ),
)
_WARMUP_ITERATIONS, _ITERATIONS = 3, 4


def recorded(bandwidth_bps: int, runtime: str = BYTEPS, **settings: int) -> Path:
    """The run directory, in ``runs``, of two workers whose links have this rate.

    ``settings``: of the runtime. BytePS has one server, and the policy fifo.
    """
    path = Path("small.toml").absolute()
    path.write_text(to_toml(NETWORK))
    case = Case(str(path), "fifo", bandwidth_bps)
    if runtime != BYTEPS:
        case = all_reduce_case(case, runtime, settings)
    plan = Plan(
        (case,),
        _ITERATIONS,
        rounds=1,
        warmup_iterations=_WARMUP_ITERATIONS,
        record=True,
        idle_s=0.0,
    )
    run_bench(plan, Path("runs"), True, print)
    (run,) = Path("runs").iterdir()
    return run
