"""A worker that runs cases without servers: ``collective_worker.py SYNC CASE...``.

SYNC is one of ``DistributedOptimizer``'s, or ``mixed``: "dear-planned", with a plan after two steps
in which some groups are whole on every rank and others are shared. Writes what ``case_worker.py``
writes, and ends right after the last step of the last case.
"""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import cases
import torch
from case_worker import DEVICE, write
from shared_worker import MixedPlan
from torch import Tensor, distributed

from byteprophet.torch.sync import group_exchange


class Ranks:
    """What ``cases.Trainer`` asks of the module that a script imports."""

    def __init__(self, sync: str) -> None:
        self._sync = sync

    def rank(self) -> int:
        return distributed.get_rank()

    def broadcast_parameters(self, parameters: dict[str, Tensor], root_rank: int) -> None:
        for values in parameters.values():
            distributed.broadcast(values, root_rank)

    def DistributedOptimizer(self, optimizer: Any, **options: Any) -> Any:
        from byteprophet.torch import DistributedOptimizer

        mixed = self._sync == "mixed"
        sync = "dear-planned" if mixed else self._sync
        made: Any = DistributedOptimizer(optimizer, sync=sync, fusion=100_000, **options)
        if mixed:
            made._front._between_steps = MixedPlan(made._front.synchroniser)
        return made


def main() -> None:
    sync, *names = sys.argv[1:]
    torch.set_num_threads(1)
    finished: list[Any] = []
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    # The first exit handler runs last: by then the optimizers have finished.
    atexit.register(lambda: write(folder, *finished) if finished else None)
    distributed.init_process_group("gloo")
    trainer = cases.Trainer(Ranks(sync), shipped=False, crossed=False, device=DEVICE)
    usual, group_exchange._WAIT = group_exchange._WAIT, timedelta(milliseconds=5)
    results = {}
    for name in names:
        results[name] = cases.CASES[name](trainer)
        group_exchange._WAIT = usual  # it has run out often enough; no thread may go on so at exit
    finished.extend([distributed.get_rank(), 0, results])


if __name__ == "__main__":
    main()
