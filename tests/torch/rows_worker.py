"""A rank that trains embeddings with sparse gradients: ``rows_worker.py OPTIONS``, JSON.

Without ``sync``, it is one process that does what ``as_ranks`` ranks do together: it computes the
gradients of each of them, adds them in rank order as dense tensors, divides, and updates by plain
torch. Writes ``rank-<rank>.pt`` to ``out``: by case the parameters, the whole state and the norms.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

ITERATIONS = 5
USERS, WORDS = 97, 61


@dataclass
class Options:
    out: str
    cases: list[str]
    sync: str | None = None
    as_ranks: int = 3  # of one process that does what they do
    fusion: int | str = "planned"
    without_model: bool = False  # the optimizer is not given it
    declares: bool = False  # the optimizer is given the tables
    dense_on: int | None = None  # the rank whose embeddings have dense gradients
    undeclared_on: int | None = None  # the rank that is not given the tables
    dies_at: int | None = None  # rank 1, before this iteration's step


class Net(nn.Module):
    """Two tables, one of bags, a third that nobody uses, and dense layers."""

    def __init__(self, dtype: torch.dtype, sparse: bool = True) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 8, sparse=sparse)
        self.words = nn.EmbeddingBag(WORDS, 8, mode="sum", sparse=sparse)
        self.never = nn.Embedding(5, 8, sparse=sparse)
        self.first = nn.Linear(16, 12)
        self.last = nn.Linear(12, 4)
        self.to(dtype)

    def forward(self, users: Tensor, words: Tensor, words_first: bool) -> Tensor:
        if words_first:
            bag = self.words(words)
            x = torch.cat((self.users(users), bag), 1)
        else:
            x = torch.cat((self.users(users), self.words(words)), 1)
        return self.last(torch.tanh(self.first(x)))

    @property
    def tables(self) -> list[Tensor]:
        return [self.users.weight, self.words.weight, self.never.weight]

    @property
    def layers(self) -> list[Tensor]:
        return [*self.first.parameters(), *self.last.parameters()]


def backward(model: Net, iteration: int, part: int, rank: int, case: Case) -> None:
    """One backward pass of a rank; ranks have batches of different sizes, low numbers mostly."""
    draws = torch.Generator().manual_seed(1000 * iteration + 100 * part + rank)
    count = 5 + 6 * rank
    users = (torch.rand(count, generator=draws) ** 3 * USERS).long()
    words = (torch.rand(count, 3, generator=draws) ** 3 * WORDS).long()
    labels = torch.randint(0, 4, (count,), generator=draws)
    if case.unused and rank == 1 and iteration % 2:
        loss = model.last(torch.ones(1, 12, dtype=model.last.weight.dtype)).sum()
    else:
        scores = model(users, words, case.diverges and rank % 2 == 1)
        loss = functional.cross_entropy(scores.float(), labels)
        if case.tied:
            loss = loss + functional.linear(torch.ones(8), model.users.weight).sin().sum()
    loss.backward()


@dataclass(frozen=True)
class Case:
    optimizers: Callable[[Net], list[Optimizer]]
    passes: int = 1
    held: bool = False  # all passes but the last are in no_sync()
    unused: bool = False
    tied: bool = False  # the table of users is also the weight of a layer
    diverges: bool = False  # odd ranks need the tables in the other order
    clip: float | None = None
    clip_value: float | None = None
    reads: bool = False  # a gradient, before the step
    synchronizes: bool = False
    zeros: bool = False  # gradients are filled with zeros
    resumes: str = ""  # "whole" or "shards", after half of the iterations
    dtype: torch.dtype = torch.float32
    travels_as: torch.dtype | None = None


def sgd(model: Net) -> list[Optimizer]:
    return [SGD(model.parameters(), lr=0.5)]


def momentum(model: Net) -> list[Optimizer]:
    return [SGD(model.parameters(), lr=0.1, momentum=0.9)]


def adagrad(model: Net) -> list[Optimizer]:
    return [Adagrad(model.parameters(), lr=0.1)]


def sparse_adam(model: Net) -> list[Optimizer]:
    return [SparseAdam(model.tables, lr=0.05), SGD(model.layers, lr=0.5)]


CASES = {
    "sgd": Case(sgd),
    "momentum": Case(momentum),
    "adagrad": Case(adagrad),
    "sparse adam": Case(sparse_adam),
    "two passes": Case(adagrad, passes=2),
    "no_sync": Case(momentum, passes=3, held=True),
    "unused": Case(sparse_adam, unused=True),
    "tied": Case(momentum, unused=True, tied=True),
    "tied, two passes": Case(momentum, passes=2, unused=True, tied=True),
    "orders": Case(sgd, diverges=True),
    "clipped": Case(adagrad, clip=0.2),
    "clipped by value": Case(sgd, clip_value=1e-3),
    "read": Case(adagrad, reads=True),
    "synchronized": Case(momentum, synchronizes=True),
    "zeros": Case(adagrad, zeros=True),
    "resumed": Case(sparse_adam, resumes="whole"),
    "resumed by shards": Case(adagrad, resumes="shards"),
    "bfloat16": Case(sgd, dtype=torch.bfloat16),
    "travels as float16": Case(sgd, travels_as=torch.float16),
}


def averaged(gradients: Sequence[Tensor | None], parameter: Tensor, case: Case) -> Tensor:
    """The mean of all ranks' gradients, added in rank order. Only tables may have none: no rows."""
    given = [each for each in gradients if each is not None]
    travels_as = case.travels_as or parameter.dtype
    summed = torch.float32 if travels_as.itemsize == 2 else travels_as
    total = torch.zeros_like(parameter, dtype=summed)
    for gradient in gradients:
        if gradient is not None:
            sent = gradient.to(travels_as)
            dense = sent.coalesce().to_dense() if sent.is_sparse else sent
            total = total + dense.to(summed)
    scale = torch.tensor(1.0 / len(gradients), dtype=summed)
    mean = (total * scale).to(travels_as).to(parameter.dtype)
    if given and not given[0].is_sparse:
        return mean
    rows = sorted({row for each in given for row in each._indices()[0].tolist()})
    numbers = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(numbers, mean[rows], parameter.shape, is_coalesced=True)


def alone(case: Case, ranks: int) -> dict[str, Any]:
    """What the ranks do together, in one process and by plain torch."""
    model = made(case)
    optimizers = case.optimizers(model)
    norms = []
    for iteration in range(ITERATIONS):
        of_ranks = []
        for rank in range(ranks):
            model.zero_grad()
            for part in range(case.passes):
                backward(model, iteration, part, rank, case)
            of_ranks.append([p.grad for p in model.parameters()])
        for parameter, *gradients in zip(model.parameters(), *of_ranks, strict=True):
            parameter.grad = averaged(gradients, parameter, case)
        stand_ins = []
        for parameter in model.parameters():
            assert parameter.grad is not None
            values = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
            stand_ins.append(values.detach())
            stand_ins[-1].grad = values
        norms += list(clipped(stand_ins, case))
        for optimizer in optimizers:
            optimizer.step()
    return result(model, optimizers, norms)


def clipped(parameters: Sequence[Tensor], case: Case) -> Iterator[Tensor]:
    if case.clip is not None:
        yield nn.utils.clip_grad_norm_(parameters, case.clip)
    if case.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, case.clip_value)


def made(case: Case, sparse: bool = True) -> Net:
    torch.manual_seed(0)
    return Net(case.dtype, sparse)


def result(model: Net, optimizers: Sequence[Optimizer], norms: list[Tensor]) -> dict[str, Any]:
    state = [dense(optimizer.state_dict()["state"]) for optimizer in optimizers]
    return {"parameters": model.state_dict(), "state": state, "norms": norms}


def dense(value: Any) -> Any:
    """Sparse tensors, as momentum buffers are, compare by what they are."""
    if isinstance(value, dict):
        return {key: dense(each) for key, each in value.items()}
    return value.to_dense() if isinstance(value, Tensor) and value.is_sparse else value


def together(case: Case, options: Options, rank: int) -> dict[str, Any]:
    """This rank's part of the job."""
    model, optimizers = distribute(case, options, rank)
    norms: list[Tensor] = []
    for iteration in range(ITERATIONS):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=not case.zeros)
        for part in range(case.passes):
            last = part == case.passes - 1
            if case.held and not last:
                with optimizers[0].no_sync():
                    backward(model, iteration, part, rank, case)
            else:
                backward(model, iteration, part, rank, case)
        if iteration == options.dies_at and rank == 1:
            os._exit(3)
        if case.reads:
            assert model.users.weight.grad is not None
            assert model.users.weight.grad.is_coalesced()
        norms += list(clipped(list(model.parameters()), case))
        for optimizer in optimizers:
            if case.synchronizes:
                optimizer.synchronize()
            optimizer.step()
        if case.resumes and iteration == ITERATIONS // 2:
            model, optimizers = resumed(case, options, rank, model, optimizers)
    return result(model, optimizers, norms)


def distribute(case: Case, options: Options, rank: int) -> tuple[Net, list[Any]]:
    from byteprophet.torch import Compression, DistributedOptimizer

    model = made(case, sparse=rank != options.dense_on)
    assert options.sync is not None
    tables = model.tables if options.declares and rank != options.undeclared_on else ()
    optimizers: list[Any] = [
        DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            model=None if options.without_model else model,
            sync=options.sync,
            fusion=options.fusion,
            backward_passes_per_step=1 if case.held else case.passes,
            compression=Compression.fp16 if case.travels_as else Compression.none,
            sparse=tables,
        )
        for optimizer in case.optimizers(model)
    ]
    return model, optimizers


def resumed(
    case: Case, options: Options, rank: int, model: Net, optimizers: Sequence[Any]
) -> tuple[Net, list[Any]]:
    """A new model and new optimizers that go on where these have stopped."""
    whole = case.resumes == "whole"
    states = [each.state_dict() if whole else each.sharded_state_dict() for each in optimizers]
    parameters = {name: value.clone() for name, value in model.state_dict().items()}
    fresh, others = distribute(case, options, rank)
    fresh.load_state_dict(parameters)
    for other, state in zip(others, states, strict=True):
        if whole:
            other.load_state_dict(state)
        else:
            other.load_sharded_state_dict(state)
    return fresh, others


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if options.sync is None:
        results = {name: alone(CASES[name], options.as_ranks) for name in options.cases}
    else:
        distributed.init_process_group("gloo")
        results = {name: together(CASES[name], options, rank) for name in options.cases}
    torch.save(results, Path(options.out) / f"rank-{rank}.pt")


if __name__ == "__main__":
    main()
