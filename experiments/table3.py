"""Table 3 of the Prophet paper: batch sizes, ResNet-18 and ResNet-50, at 3 Gbit/s.

    python experiments/table3.py

Two workers and a server. Started again, it goes on where it stopped; ``--report`` runs nothing.
About a quarter of an hour on two quiet cores.
"""

from __future__ import annotations

from paper_script import table_script
from paper_table import PAPER_COMPUTE_NS, Row, Table
from script import run_script

from byteprophet.bench.grid import Cell

_PAPER = {
    # Prophet, ByteScheduler
    ("resnet18", 16): (32.46, 29.06),
    ("resnet18", 64): (153, 115),
    ("resnet50", 16): (14.44, 14.22),
    ("resnet50", 32): (34.8, 28.5),
    ("resnet50", 64): (60, 44),
}
# Section 5.3 has more of one row.
_MORE = {("resnet18", 64): {"p3": 137.0, "fifo": 110.0}}

TABLE = Table(
    name="table3",
    title="Table 3: batch sizes at 3 Gbit/s, 2 workers, 1 server",
    axis="model (batch)",
    rows=tuple(
        Row(
            f"{model} ({batch_size})",
            Cell(model, "3gbit", compute_ns=round(PAPER_COMPUTE_NS[model] * batch_size / 64)),
            batch_size,
            paper=dict(zip(("prophet", "bytescheduler"), rates, strict=True))
            | _MORE.get((model, batch_size), {}),
        )
        for (model, batch_size), rates in _PAPER.items()
    ),
    notes=(
        "The paper does not print this table's link. Its rows of batch 64 are those of Table 2 and "
        "of section 5.3 at 3 Gbit/s, so that is taken for all.",
        "Compute is proportional to the batch: 72 samples/s for ResNet-50 (Table 2), 220 for "
        "ResNet-18 (section 5.3, 10 Gbit/s).",
        "The paper's rates of small batches are too low for a link of 3 Gbit/s to each worker and "
        "fit one to the server that the workers share, without overlap (ResNet-50, batch 16: 0.22 "
        "+ 2 x 0.57 s make 12 samples/s): see `--shared`.",
    ),
)

if __name__ == "__main__":
    run_script(table_script(TABLE))
