"""Runs scripts, one after the other, as one rank of a job.

    torchrun --nproc-per-node 2 tests/torch/ddp/scripts/run.py RESULTS [--in-rank-order] [NAME...]

For each script, a line of JSON goes to ``RESULTS/rank-<rank>.jsonl``: the digest of the tensors
that it returned, who exchanged the gradients at its end, and the error that ended it, if any. The
tensors themselves go to ``RESULTS/rank-<rank>.pt``.

With ``--in-rank-order``, DistributedDataParallel averages as our exchange does (``rank_order.py``).
The line then also says how many averages were compared with its own, and how far they were apart.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import gradients  # noqa: F401 (adds its scripts)
import groups  # noqa: F401
import habits  # noqa: F401
import hooks  # noqa: F401
import kinds  # noqa: F401
import left  # noqa: F401
import nets  # noqa: F401
import optimizers  # noqa: F401
import options  # noqa: F401
import passes  # noqa: F401
import rank_order
import torch
from common import SCRIPTS, wrapped
from torch import Tensor, distributed

IN_RANK_ORDER = "--in-rank-order"


def digest_of(tensors: Iterable[Tensor]) -> str:
    """A digest of the values, whatever their layouts."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


def exchanged_by() -> str:
    """Who exchanged the gradients of the models at the end of the script."""
    loaded = sys.modules.get("byteprophet.torch.ddp.models")
    if loaded is None:
        return "ddp"
    known = [vars(loaded)["known"](model) for model in wrapped]
    taken = bool(known) and all(each is not None and each.state.name == "OURS" for each in known)
    return "ours" if taken else "ddp"


def main() -> None:
    """Run the scripts that are named, or all."""
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    in_rank_order = names[:1] == [IN_RANK_ORDER]
    if in_rank_order:
        del names[0]
        rank_order.install()
    path = Path(folder) / f"rank-{distributed.get_rank()}"
    values = {}
    with path.with_suffix(".jsonl").open("w") as file:
        for name in names or SCRIPTS:
            torch.manual_seed(7)
            torch._dynamo.reset()
            rank_order.compared.averages, rank_order.compared.apart = 0, 0.0
            try:
                values[name] = [tensor.detach().clone() for tensor in SCRIPTS[name]()]
                row = {"script": name, "digest": digest_of(values[name]), "by": exchanged_by()}
                if in_rank_order:
                    row |= vars(rank_order.compared)
            except Exception as error:  # noqa: BLE001 (whoever reads the file judges it)
                row = {"script": name, "digest": "", "by": "", "error": f"{error!r:.200}"}
            wrapped.clear()
            print(json.dumps(row), file=file, flush=True)
    torch.save(values, path.with_suffix(".pt"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
