"""A worker that runs cases one after the other: ``case_worker.py FRONT CASE...``.

FRONT is ``shipped`` (BytePS' own optimizer), ``auto`` (the same import, with whatever the
environment loads), ``crossed`` (likewise, with upstream's optimizer that crosses the barrier),
``ours``, or ``single`` (one process, both ranks' batches). Models are on the device that
BYTEPROPHET_TEST_DEVICE names. Ends right after the last step of the last case, and writes what came
out when BytePS is left.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import cases
import torch
from torch import Tensor

Results = dict[str, list[Tensor]]
DEVICE = os.environ.get("BYTEPROPHET_TEST_DEVICE", "cpu")


def digest(tensors: list[Tensor]) -> str:
    """A checksum over the bytes of ``tensors``."""
    total = hashlib.sha256()
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total.update(values.numpy().tobytes())
    return total.hexdigest()


def write(folder: Path, rank: int, scheduled: int, results: Results) -> None:
    """Digests of all cases, and the values themselves for what is only nearly equal."""
    folder.mkdir(exist_ok=True, parents=True)
    record = {name: digest(tensors) for name, tensors in results.items()}
    (folder / f"worker-{rank}.json").write_text(
        json.dumps({"digests": record, "scheduled": scheduled})
    )
    values = {name: [t.detach().cpu() for t in tensors] for name, tensors in results.items()}
    torch.save(values, folder / f"worker-{rank}.pt")


def main() -> None:
    front, *names = sys.argv[1:]
    bps: Any = None
    finished: list[Any] = []
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    # The first exit handler runs last: by then BytePS is shut down.
    atexit.register(lambda: write(folder, *finished) if finished else None)
    if front == "ours":
        import byteprophet.torch as bps
    elif front != "single":
        import byteps.torch as bps
    if bps is not None:
        bps.init()
    trainer = cases.Trainer(
        bps, shipped=front == "shipped", crossed=front == "crossed", device=DEVICE
    )
    results = {name: cases.CASES[name](trainer) for name in names}
    scheduled = -1
    if front in ("auto", "ours"):
        from byteprophet.torch import scheduled_partitions

        scheduled = scheduled_partitions()
    finished.extend([trainer.ranks[0], scheduled, results])


if __name__ == "__main__":
    main()
