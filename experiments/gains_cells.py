"""The cells of ``gains.py``: models on links, under a runtime, and the jobs that run there.

The known models are in two sets, by their names: TUNE, on which the optimizer may be improved, and
REPORT, on which it is only measured. The unseen models are a third set, ACCEPT, which is measured
once, in the end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from byteprophet.bound import all_reduced_bytes
from byteprophet.launcher import JobSpec
from byteprophet.network.rate import PAYLOAD_SHARE
from byteprophet.observe import recording
from byteprophet.runtime_settings import SYNC
from byteprophet.schedulers import DEFAULT

TRAIN = Path(__file__).parent / "models" / "train.py"
TUNE, REPORT, ACCEPT = "tune", "report", "accept"
SETS = {
    TUNE: ("resnet", "llama", "vgg", "dlrm"),
    REPORT: ("gpt", "bert", "mobilenet", "vit"),
    ACCEPT: ("convnext", "densenet", "mixer"),
}
BYTEPS, DDP, ALL_REDUCE = "byteps", "ddp", "allreduce"
RUNTIMES = (BYTEPS, DDP, ALL_REDUCE)
_PLACES = ((2, 1.0), (2, 0.5), (2, 1.5), (3, 1.0), (4, 0.7))
"""Ranks, and communication over compute; the cells take them in turn."""
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Cell:
    """``ratio``: the time of all bytes on the link, over the compute of an iteration."""

    model: str
    runtime: str
    ranks: int
    ratio: float

    @property
    def name(self) -> str:
        """Which cell it is, in file names and for ``--cells``."""
        return f"{self.model}-{self.runtime}-{self.ranks}-{self.ratio:g}"

    @property
    def kind(self) -> str:
        """The set to which the model belongs."""
        return next(name for name, models in SETS.items() if self.model in models)

    def bandwidth_bps(self, size_bytes: int, compute_ns: int) -> int:
        """The rate of each worker's link at which the cell has its ratio, in three digits.

        ``size_bytes``: of all gradients. With a server, each rank sends and receives all of them.
        """
        byteps = self.runtime == BYTEPS
        moved_bytes = size_bytes if byteps else all_reduced_bytes(size_bytes, self.ranks)
        exact_bps = moved_bytes * 8e9 / (self.ratio * compute_ns) / PAYLOAD_SHARE
        return int(float(f"{exact_bps:.3g}"))


CELLS = tuple(
    Cell(model, runtime, *_PLACES[number % len(_PLACES)])
    for number, (model, runtime) in enumerate(
        product([model for models in SETS.values() for model in models], RUNTIMES)
    )
)


def job_of(
    cell: Cell,
    bandwidth_bps: int | None,
    iterations: int,
    runs: Path,
    *,
    sync: str = "",
    scheduler: str = "fifo",
    settings: dict[str, int] | None = None,
    partition_bytes: int | None = None,
    bucket_cap_mb: float | None = None,
) -> JobSpec:
    """A recorded job of the cell, as its user would start it if nothing is said.

    ``sync``: what exchanges gradients; by default the cell's runtime. A script of
    DistributedDataParallel stays one.
    """
    sync = sync or cell.runtime
    taken_over = cell.runtime == DDP != sync
    command = [sys.executable, str(TRAIN), "--model", cell.model]
    command += ["--sync", DDP if taken_over else sync]
    command += ["--iterations", str(iterations)]
    if bucket_cap_mb is not None:
        command += ["--bucket-cap-mb", f"{bucket_cap_mb:g}"]
    return JobSpec(
        command=tuple(command),
        run_directory=runs,
        workers=cell.ranks,
        servers=int(sync == BYTEPS),
        scheduler=scheduler if sync == BYTEPS else DEFAULT,
        settings=settings or {},
        partition_bytes=partition_bytes,
        bandwidth_bps=bandwidth_bps,
        environment={recording.VARIABLE: "1", SYNC: sync if taken_over else ""},
        ranks=taken_over and sync == BYTEPS,
        namespaces=True,
        timeout_s=_TIMEOUT_S,
        controller=sync == BYTEPS and scheduler == "prophet",
    )
