"""A rank of ``sparse_gradients.py``: trains embeddings, counts what its interface sends.

    sparse_worker.py MODEL VARIANT BATCH ITERATIONS

VARIANT is ``rows`` (sparse gradients under our ``allreduce``), ``dense`` (dense ones under it), or
``ddp`` (sparse ones under DistributedDataParallel). Writes ``sparse-<rank>.json`` in the run
directory: times, bytes, and what formulas give for the rows that the ranks have touched.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from counters import counted
from torch import Tensor, distributed, nn
from torch.nn import functional

from byteprophet.allreduce.rows import (
    Touched,
    block_words,
    by_owner_bytes,
    dense_bytes,
    gathered_bytes,
    least_bytes,
    sent_bytes,
)

WARM_UP = 3
_ZIPF = 1.05
_BUCKET_BYTES = 2_000_000
_SETTLE_S = 0.5

Draw = npt.NDArray[np.int64]


class Recommender(nn.Module):
    """NCF-like: a user and an item per sample, a small network that says whether they fit."""

    TABLES = (("users", 138_493), ("items", 26_744))
    WIDTH = 64

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.users, self.items = (
            nn.Embedding(rows, self.WIDTH, sparse=sparse) for _, rows in self.TABLES
        )
        self.top = nn.Sequential(
            nn.Linear(2 * self.WIDTH, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()
        )
        self.last = nn.Linear(64, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The loss of samples that are all positive."""
        pairs = torch.cat((self.users(users), self.items(items)), 1)
        scores = self.last(self.top(pairs))
        return functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


class LanguageModel(nn.Module):
    """LM1B-like, with an eighth of its words: inputs, a layer, and a softmax over drawn words."""

    TABLES = (("inputs", 99_184), ("outputs", 99_184))
    WIDTH = 512

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.inputs, self.outputs = (
            nn.Embedding(rows, self.WIDTH, sparse=sparse) for _, rows in self.TABLES
        )
        self.hidden = nn.Linear(self.WIDTH, self.WIDTH)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        """The loss of each word's next one among the first 64 next ones of its own group."""
        hidden = torch.tanh(self.hidden(self.inputs(words))).view(-1, 64, self.WIDTH)
        scores = hidden @ self.outputs(following).view(-1, 64, self.WIDTH).transpose(1, 2)
        labels = torch.arange(64).expand(len(scores), 64)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


MODELS: dict[str, Any] = {"ncf": Recommender, "lm1b": LanguageModel}


def draws_of(model: Any, iteration: int, rank: int, batch: int) -> list[Draw]:
    """The rows of each table that a rank looks up in an iteration; low numbers are frequent."""
    lot = np.random.default_rng((iteration, rank))
    drawn = []
    for _, rows in model.TABLES:
        shares = np.cumsum(1.0 / np.arange(1, rows + 1) ** _ZIPF)
        drawn.append(np.searchsorted(shares, lot.random(batch) * shares[-1]).astype(np.int64))
    return drawn


def formulas(model: Any, iterations: Sequence[int], ranks: int, batch: int) -> dict[str, float]:
    """What a rank sends per iteration, on average, for the tables' gradients."""
    totals = dict.fromkeys(("rows", "by_owner", "gathered", "least", "dense"), 0.0)
    width = model.WIDTH
    most = [0] * len(model.TABLES)
    for iteration in range(iterations[-1] + 1):
        of_ranks = [draws_of(model, iteration, rank, batch) for rank in range(ranks)]
        for place, (_, rows) in enumerate(model.TABLES):
            touched = Touched.of([np.unique(each[place]) for each in of_ranks])
            words, most[place] = block_words(most[place], rows), max(touched.rows)
            if iteration in iterations:
                totals["rows"] += sum(sent_bytes(touched, width, 4, words, rows)) / ranks
                totals["by_owner"] += by_owner_bytes(touched, 4 * width + 8)
                totals["gathered"] += gathered_bytes(touched, 4 * width + 8)
                totals["least"] += least_bytes(touched, 4 * width)
                totals["dense"] += dense_bytes(ranks, 4 * width * rows)
    return {name: total / len(iterations) for name, total in totals.items()}


def main() -> None:
    """Train, write the result."""
    name, variant, batch, iterations = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    made = MODELS[name](variant != "dense")
    model: nn.Module = made
    optimizer: Any = torch.optim.Adagrad(made.parameters(), lr=0.05)
    if variant == "ddp":
        model = nn.parallel.DistributedDataParallel(made)
    else:
        from byteprophet.torch import DistributedOptimizer

        optimizer = DistributedOptimizer(
            optimizer, model=made, sync="allreduce", fusion=_BUCKET_BYTES
        )
    measured = range(WARM_UP, WARM_UP + iterations)
    counts = [(0, 0)]
    began_ns = 0
    for iteration in range(measured.stop):
        if iteration == measured.start:
            counts = [_quiet_counts()]
            began_ns = time.monotonic_ns()
        inputs = (torch.from_numpy(each) for each in draws_of(made, iteration, rank, batch))
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()
    _finish(optimizer)
    took_ns = time.monotonic_ns() - began_ns
    counts.append(_quiet_counts())
    tables = {id(getattr(made, table).weight) for table, _ in made.TABLES}
    other_bytes = sum(p.nbytes for p in made.parameters() if id(p) not in tables)
    parameters = torch.cat([parameter.detach().flatten() for parameter in made.parameters()])
    result = {
        "iteration_ns": took_ns // iterations,
        "sent_bytes": (counts[1][0] - counts[0][0]) / iterations,
        "received_bytes": (counts[1][1] - counts[0][1]) / iterations,
        "other_bytes": dense_bytes(ranks, other_bytes),
        "parameters_sum": float(parameters.double().sum()),
        **formulas(made, measured, ranks, batch),
    }
    path = Path(os.environ["BYTEPROPHET_RUN"]) / f"sparse-{rank}.json"
    path.write_text(json.dumps(result), encoding="utf-8")


def _finish(optimizer: Any) -> None:
    if hasattr(optimizer, "finish"):
        optimizer.finish()


def _quiet_counts() -> tuple[int, int]:
    """What this host has sent and received, once no rank sends anything."""
    distributed.barrier()
    time.sleep(_SETTLE_S)
    counts = counted(Path("/proc/self/net/dev").read_text(encoding="ascii"))
    distributed.barrier()
    return counts


if __name__ == "__main__":
    main()
