"""Runs scripts, one after the other, as one rank of a job.

    torchrun --nproc-per-node 2 tests/torch/ddp/scripts/run.py RESULTS [--in-rank-order] [--gpu]
      [--nccl] [NAME...]

For each script, a line of JSON goes to ``RESULTS/rank-<rank>.jsonl``: the digest of the tensors
that it returned, who exchanged the gradients at its end, and the error that ended it, if any. The
tensors themselves go to ``RESULTS/rank-<rank>.pt``.

With ``--in-rank-order``, DistributedDataParallel averages as our exchange does (``rank_order.py``).
The line then also says how many averages were compared with its own, and how far they were apart.

With ``--gpu``, every tensor that a script makes is on the GPU of its rank, and gloo exchanges
gradients; with ``--nccl``, NCCL does. Ranks that share one GPU then seem to be on two hosts.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterable
from datetime import timedelta
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

IN_RANK_ORDER, GPU, NCCL = "--in-rank-order", "--gpu", "--nccl"
_SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}

_TIMEOUT = timedelta(minutes=1)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """A digest of the values, whatever their layouts."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


def exchanged_by() -> str:
    """Who exchanged the gradients of the models at the end of the script."""
    loaded = sys.modules.get("byteprophet.torch.ddp.models")
    if loaded is None:
        return "ddp"
    known = [vars(loaded)["known"](model) for model in wrapped]
    taken = bool(known) and all(each is not None and each.state.name == "OURS" for each in known)
    return "ours" if taken else "ddp"


def use_gpu() -> None:
    """Make all tensors on this rank's GPU from now on, the same way in every process."""
    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    if gpus < int(os.environ["WORLD_SIZE"]):
        os.environ.update(_SHARED, NCCL_HOSTID=f"rank-{rank}")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.cuda.set_device(rank % gpus)
    torch.set_default_device("cuda")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def main() -> None:
    """Run the scripts that are named, or all."""
    folder, *rest = sys.argv[1:]
    given = {each for each in rest if each.startswith("--")}
    names = [each for each in rest if each not in given]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if GPU in given:
        use_gpu()
    backend = "cpu:gloo,cuda:nccl" if NCCL in given else "gloo"
    distributed.init_process_group(backend, timeout=_TIMEOUT if GPU in given else None)
    in_rank_order = IN_RANK_ORDER in given
    if in_rank_order:
        rank_order.install()
    path = Path(folder) / f"rank-{distributed.get_rank()}"
    values = {}
    with path.with_suffix(".jsonl").open("w") as file:
        for name in names or SCRIPTS:
            torch.manual_seed(7)
            torch._dynamo.reset()
            rank_order.compared.averages, rank_order.compared.apart = 0, 0.0
            try:
                values[name] = [tensor.detach().cpu().clone() for tensor in SCRIPTS[name]()]
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
