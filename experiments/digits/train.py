"""Trains the small ResNet on handwritten digits with BytePS, as any training script would.

    byteprophet run --workers 2 --bandwidth 500mbit -- python experiments/digits/train.py

It uses ``byteps.torch`` as its documentation has it and knows nothing of schedulers: with
``BYTEPS_SCHEDULER`` set, byteprophet comes in by itself. Each worker takes its share of every
global batch. Batch norm keeps running statistics per rank, so evaluation differs a little between
ranks although parameters are the same.

Writes ``$BYTEPROPHET_RUN/results/worker-<rank>.json`` (fields: at the end of ``main``),
and rank 0 its parameters beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import byteps.torch as bps
from calibrate import calibrate
from data import BATCH_SIZE, batch_indices, load
from model import ResNet
from recipe import (
    ITERATIONS,
    evaluate,
    make_optimizer,
    make_schedule,
    parameters_sha256,
    set_up,
    write_results,
)
from torch.nn import functional


def main() -> None:
    """Train, evaluate, write results."""
    parser = argparse.ArgumentParser(description="Train a small ResNet on handwritten digits.")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="parameter updates")
    parser.add_argument("--warmup", type=int, default=0, help="of these, how many not to time")
    options = parser.parse_args()
    set_up()
    train, test = load()
    model = ResNet()
    # Before init: nothing of BytePS runs yet.
    profile = calibrate(model, *train[batch_indices(0, 0, 2, len(train))])

    bps.init()
    rank, size = bps.rank(), bps.size()
    optimizer = make_optimizer(model)
    schedule = make_schedule(optimizer, options.iterations)
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)

    starts_ns = []
    for iteration in range(options.iterations):
        starts_ns.append(time.monotonic_ns())
        images, labels = train[batch_indices(iteration, rank, size, len(train))]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if iteration % 10 == 0:
            print(f"iteration {iteration}: loss {loss.item():.4f}", flush=True)
    starts_ns.append(time.monotonic_ns())

    final_loss, _ = evaluate(model, train)
    test_loss, test_accuracy = evaluate(model, test)
    print(f"loss {final_loss:.4f}, test accuracy {test_accuracy:.4f}", flush=True)
    ours = sys.modules.get("byteprophet.torch")
    write_results(
        Path(os.environ.get("BYTEPROPHET_RUN", ".")) / "results",
        f"worker-{rank}",
        {
            "rank": rank,
            "size": size,
            "batch_size": BATCH_SIZE,
            "updates": options.iterations,
            "iteration_ns": [b - a for a, b in pairwise(starts_ns[options.warmup :])],
            "final_loss": final_loss,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "parameters_sha256": parameters_sha256(model),
            "scheduled_partitions": ours.scheduled_partitions() if ours else 0,
            "profile": profile,
        },
        model if rank == 0 else None,
    )
    bps.shutdown()


if __name__ == "__main__":
    main()
