"""Trains a model on random data, as a user's script would.

    byteprophet run --servers 0 --record -- python train.py --model resnet --sync ddp
    byteprophet run --bandwidth 400mbit --record -- python train.py --model gpt --sync byteps

With ``--sync ddp`` it is a plain script of DistributedDataParallel, which knows nothing of
byteprophet. Every rank draws data of its own. In the end rank 0 prints the digest of the
parameters, which is the same for the same options, and the median time of an iteration.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import statistics
import time
from typing import Any

import families
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

SYNCS = ("byteps", "allreduce", "dear", "dear-planned", "fsdp2", "ddp")
_BATCHES = 4
"""Drawn before training; then they repeat."""
_WARMUP = 5


def main() -> None:
    """Train."""
    options = parse()
    torch.set_num_threads(1)
    rank = join(options.sync)
    torch.manual_seed(options.seed)
    family = families.make(options.model)
    model, optimizer = wrap(family.model, family.optimizer, options)
    lot = torch.Generator().manual_seed(1000 * options.seed + rank)
    batches = [family.draw(options.batch, lot) for _ in range(_BATCHES)]
    model.train()
    began_s = [time.perf_counter()]
    for iteration in range(options.iterations):
        *inputs, classes = batches[iteration % _BATCHES]
        optimizer.zero_grad()
        logits: Tensor = model(*inputs)
        loss: Any = functional.cross_entropy(logits.flatten(0, -2), classes.flatten())
        loss.backward()
        optimizer.step()
        began_s.append(time.perf_counter())
    digest = digest_of(family.model)  # reading parameters waits for outstanding updates
    if rank == 0:
        took_s = [after - before for before, after in itertools.pairwise(began_s)]
        first = min(_WARMUP, len(took_s) // 2)
        if options.measured:
            first = max(first, len(took_s) - options.measured)
        median_s = statistics.median(took_s[first:])
        print(f"digest {digest}, median iteration {1e3 * median_s:.1f} ms", flush=True)
    if options.sync != "byteps":
        distributed.destroy_process_group()


def join(sync: str) -> int:
    """Join the job; the rank."""
    if sync == "byteps":
        import byteprophet.torch as bps

        bps.init()
        return int(bps.rank())
    distributed.init_process_group("gloo")
    return distributed.get_rank()


def wrap(
    model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace
) -> tuple[nn.Module, Any]:
    """The module to call and the optimizer to step, which make gradients the same on all ranks."""
    if options.sync == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb)
        if options.compile:
            wrapped.compile()
        return wrapped, optimizer
    if options.compile:
        model.compile()
    import byteprophet.torch as bps

    if options.sync == "byteps":
        bps.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, bps.DistributedOptimizer(optimizer, model=model, sync=options.sync)


def digest_of(model: nn.Module) -> str:
    """Of all parameters' bits."""
    values = hashlib.sha256()
    state = model.state_dict()  # whole values, where parameters are sharded
    for name, _ in model.named_parameters():
        values.update(state[name].contiguous().numpy().tobytes())
    return values.hexdigest()[:16]


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Train a model on random data.")
    models = (*families.KNOWN, *families.UNSEEN, *families.PACED)
    parser.add_argument("--model", choices=models, required=True)
    parser.add_argument("--sync", choices=SYNCS, required=True)
    parser.add_argument("--batch", type=int, default=8, help="samples of each rank")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument(
        "--measured", type=int, default=0, help="the last iterations alone; default: all but a few"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="all of the model by torch.compile")
    parser.add_argument(
        "--bucket-cap-mb", type=float, help="of DistributedDataParallel; default: its own"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
