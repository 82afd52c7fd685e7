"""Fig. 12 of the Prophet paper: ResNet-50, batch 64, under 2 to 8 workers at 10 Gbit/s.

    python experiments/workers.py

Up to four workers are real, which is as far as two cores go; where the processor is the limit a
figure is marked. All, to eight, are simulated, and labelled so; there the server's link has 10
Gbit/s, too, as in the paper. Started again, it goes on where it stopped; ``--report`` runs nothing.
About a quarter of an hour on two quiet cores.
"""

from __future__ import annotations

from paper_script import table_script
from paper_table import PAPER_COMPUTE_NS, Row, Table
from script import run_script

from byteprophet.bench.grid import Cell

_REAL = (2, 3, 4)
_PAPER = {2: {"prophet": 69.94}, 8: {"prophet": 68.83}}

TABLE = Table(
    name="workers",
    title="Fig. 12: ResNet-50, batch 64, 10 Gbit/s, 1 server",
    axis="workers",
    rows=tuple(
        Row(
            str(workers),
            Cell("resnet50", "10gbit", compute_ns=PAPER_COMPUTE_NS["resnet50"], workers=workers),
            batch_size=64,
            paper=_PAPER.get(workers, {}),
            real=workers in _REAL,
            server_bandwidth_bps=10_000_000_000,
        )
        for workers in range(2, 9)
    ),
    notes=("The paper does not print this figure's link; its instances have 10 Gbit/s.",),
)

if __name__ == "__main__":
    run_script(table_script(TABLE))
