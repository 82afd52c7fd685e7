"""Runs scripts, one after the other, as one rank of a job.

    torchrun --nproc-per-node 2 tests/torch/ddp/scripts/run.py RESULTS [NAME...]

For each script, a line of JSON goes to ``RESULTS/rank-<rank>.jsonl``: the digest of the tensors
that it returned, who exchanged the gradients at its end, and the error that ended it, if any.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import gradients  # noqa: F401 (adds its scripts)
import left  # noqa: F401
import nets  # noqa: F401
import optimizers  # noqa: F401
import options  # noqa: F401
import torch
from common import SCRIPTS, wrapped
from torch import Tensor, distributed


def digest_of(tensors: Iterable[Tensor]) -> str:
    """A digest of values, without those of marks and layouts."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().clone().contiguous().numpy().tobytes())
    return found.hexdigest()[:12]


def exchanged_by() -> str:
    """Who exchanged the gradients of the models at the end of the script."""
    loaded = sys.modules.get("byteprophet.torch.ddp.models")
    if loaded is None:
        return "ddp"
    known = [vars(loaded)["known"](model) for model in wrapped]
    return "ours" if all(each.state.name == "OURS" for each in known) else "ddp"


def main() -> None:
    """Run the scripts that are named."""
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    with (Path(folder) / f"rank-{distributed.get_rank()}.jsonl").open("w") as file:
        for name in names or SCRIPTS:
            torch.manual_seed(7)
            torch._dynamo.reset()
            try:
                got = SCRIPTS[name]()
                row = {"script": name, "digest": digest_of(got), "by": exchanged_by()}
                del got
                wrapped.clear()
            except Exception as error:  # noqa: BLE001 (the table shows it)
                row = {"script": name, "digest": "", "by": "", "error": f"{error!r:.200}"}
            print(json.dumps(row), file=file, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
