"""One worker on a slow link, the others on a fast one: the Prophet paper's, and a sixth.

    python experiments/slow_worker.py

Started again, it goes on where it stopped; ``--report`` runs nothing. About ten minutes on two
quiet cores.
"""

from __future__ import annotations

from paper_script import table_script
from paper_table import PAPER_COMPUTE_NS, Row, Table
from script import run_script

from byteprophet.bench.grid import Cell

_PAPER = {"prophet": 26.4, "bytescheduler": 25.8, "fifo": 15.09}
_RESNET50 = Cell(
    "resnet50", "3gbit", compute_ns=PAPER_COMPUTE_NS["resnet50"], slow_worker="500mbit"
)
# The slow link moves 47 MB in the time of the compute, so there is something to schedule.
_RESNET18 = Cell("resnet18", "3900mbit", compute_ns=600_000_000, slow_worker="650mbit", workers=3)

TABLE = Table(
    name="slow_worker",
    title="One worker at a sixth of the others' bandwidth",
    axis="model: slow of other links",
    rows=(
        Row("resnet50: 500 of 3000 Mbit/s", _RESNET50, 64, _PAPER),
        Row("resnet18: 650 of 3900 Mbit/s", _RESNET18, 64),
    ),
    notes=(
        "ResNet-50 runs on 2 workers, ResNet-18 on 3. Prophet is to be at least as fast as every "
        "baseline.",
        "The paper limits one worker to 500 Mbit/s and does not print the others' link; 3 Gbit/s "
        "makes it a sixth.",
    ),
)

if __name__ == "__main__":
    run_script(table_script(TABLE))
