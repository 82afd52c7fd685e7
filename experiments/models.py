"""Fig. 8 of the Prophet paper: rates of all built-in models but NCF, by policy, at 3 Gbit/s.

    python experiments/models.py

Two workers and a server. Started again, it goes on where it stopped; ``--report`` runs nothing.
About 40 minutes on two quiet cores.
"""

from __future__ import annotations

from paper_script import table_script
from paper_table import PAPER_COMPUTE_NS, Row, Table
from script import run_script

from byteprophet.bench.grid import Cell
from byteprophet.workload import builtin_names, load

_PAPER = {
    "resnet18": {"prophet": 153.0, "bytescheduler": 115.0, "p3": 137.0, "fifo": 110.0},
    "resnet50": {"prophet": 60.0, "bytescheduler": 44.0, "p3": 51.22},
}

TABLE = Table(
    name="models",
    title="Fig. 8: models at 3 Gbit/s, 2 workers, 1 server",
    axis="model",
    rows=tuple(
        Row(
            name,
            Cell(name, "3gbit", compute_ns=PAPER_COMPUTE_NS.get(name)),
            batch_size=load(name).batch_size,
            paper=_PAPER.get(name, {}),
        )
        for name in builtin_names()
        if name != "ncf"  # its compute is little beside what it exchanges
    ),
    notes=(
        "The paper prints figures of two of these models (Tables 2 and 3, section 5.3); of Fig. 8 "
        "it says that Prophet is 10 to 40% faster than ByteScheduler.",
        "Compute of ResNet-18 and ResNet-50 is the paper's (220 and 72 samples/s); the others' is "
        "the workload's own, as many operations per second as ResNet-50.",
    ),
)

if __name__ == "__main__":
    run_script(table_script(TABLE))
