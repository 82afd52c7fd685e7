"""Table 2 of the Prophet paper: ResNet-50, batch 64, under seven limits of the workers' links.

    python experiments/table2.py

Two workers and a server; compute takes 0.89 s, the 72 samples/s of the paper's GPUs, the bytes are
real. Started again, it goes on where it stopped; ``--report`` runs nothing. Half an hour on two
quiet cores.
"""

from __future__ import annotations

from paper_script import table_script
from paper_table import PAPER_COMPUTE_NS, Row, Table
from script import run_script

from byteprophet.bench.grid import Cell

_PAPER = {
    # Mbit/s: Prophet, ByteScheduler, P3
    1000: (27.7, 25.9, 25.16),
    2000: (47.9, 39.09, 37.69),
    3000: (60, 44, 51.22),
    4000: (67.06, 50.5, 64.34),
    4500: (69.29, 54.14, 67.83),
    6000: (69.5, 70, 68.93),
    10000: (70.6, 71.1, 72.83),
}

TABLE = Table(
    name="table2",
    title="Table 2: ResNet-50, batch 64, 2 workers, 1 server",
    axis="worker limit (Mbit/s)",
    rows=tuple(
        Row(
            str(limit_mbps),
            Cell("resnet50", f"{limit_mbps}mbit", compute_ns=PAPER_COMPUTE_NS["resnet50"]),
            batch_size=64,
            paper=dict(zip(("prophet", "bytescheduler", "p3"), rates, strict=True)),
        )
        for limit_mbps, rates in _PAPER.items()
    ),
)

if __name__ == "__main__":
    run_script(table_script(TABLE))
