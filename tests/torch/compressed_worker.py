"""A rank whose strategy compresses gradients: ``compressed_worker.py OPTIONS``, JSON.

Without ``sync``, it is one process that does what ``as_ranks`` ranks do together: it computes the
gradients of each of them, averages them by ``compression_reference.py``, and updates by plain
torch. Writes ``rank-<rank>.pt`` to ``out``: by case the parameters and the whole state.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

sys.path.insert(0, str(Path(__file__).parent))
from compression_reference import Reference

ITERATIONS = 5
KEY = "byteprophet_compression"


@dataclass
class Options:
    out: str
    sync: str | None = None
    cases: Sequence[str] = ()  # all
    as_ranks: int = 3  # of one process that does what they do
    saves: bool = False  # states after half of the iterations, whole and by shards
    loads: str | None = None  # whole states that another job has saved
    refusals: bool = False  # writes what is refused, by case, and trains nothing
    dies_at: int | None = None  # rank 1, before this iteration's step
    late: bool = False  # rank 1 does not call state_dict()


class Net(nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12, sparse=sparse)
        self.conv = nn.Conv2d(1, 6, 3)
        self.first = nn.Linear(6 * 2 * 10, 20)
        self.last = nn.Linear(20, 4)

    def forward(self, words: Tensor, skips_conv: bool = False) -> Tensor:
        x = self.words(words).unsqueeze(1)  # (n, 1, 4, 12)
        hidden = torch.zeros(len(words), 120) if skips_conv else self.conv(x).flatten(1)
        return self.last(torch.tanh(self.first(hidden)))


@dataclass(frozen=True)
class Case:
    rules: tuple[dict[str, Any], ...]
    optimizer: Callable[[Net], Optimizer]
    passes: int = 1
    held: bool = False  # all passes but the last are in no_sync()
    accumulation: int = 1
    skips: bool = False  # rank 1 uses no convolution in odd iterations
    sparse: bool = False
    synchronizes: bool = False
    clip_value: float | None = None
    drops: bool = False  # before each iteration's own, gradients that no step uses
    resumes: str = ""  # "whole" or "shards", after half of the iterations


def sgd(model: Net) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


def momentum(model: Net) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: Net) -> Optimizer:
    return Adam(model.parameters(), lr=0.01)


def all_(**rule: Any) -> tuple[dict[str, Any], ...]:
    return ({"parameters": ["*"], **rule},)


MATRICES = ["first.weight", "conv.weight", "words.weight"]
MIXTURE = (
    {"parameters": ["*.bias"], "type": "none"},
    {"parameters": ["conv.*"], "type": "powersgd", "rank": 2},
    {"parameters": ["*.weight"], "type": "topk", "k": 0.1, "min_bytes": 1000},
)
CASES = {
    "topk": Case(all_(type="topk", k=0.05), momentum),
    "randomk": Case(all_(type="randomk", k=0.2, seed=4), sgd),
    "onebit": Case(all_(type="onebit"), adam),
    "dithering": Case(all_(type="dithering", k=7, error_feedback=True), sgd),
    "natural": Case(all_(type="dithering", k=4, partition="natural", normalize="l2"), momentum),
    "powersgd": Case(({"parameters": MATRICES, "type": "powersgd", "rank": 2},), momentum),
    "mixture": Case(MIXTURE, adam),
    "two passes": Case(MIXTURE, sgd, passes=2),
    "no_sync": Case(MIXTURE, momentum, passes=3, held=True),
    "accumulated": Case(MIXTURE, momentum, accumulation=2),
    "skips": Case(MIXTURE, sgd, skips=True),
    "beside rows": Case(
        ({"parameters": ["first.*", "conv.weight"], "type": "onebit"},), sgd, sparse=True
    ),
    "synchronized": Case(MIXTURE, sgd, synchronizes=True),
    "clipped": Case(MIXTURE, sgd, clip_value=0.01),
    "dropped": Case(MIXTURE, momentum, drops=True),
    "dropped randomk": Case(all_(type="randomk", k=0.2), sgd, drops=True),
    "resumed": Case(MIXTURE, adam, resumes="whole"),
    "resumed randomk": Case(all_(type="randomk", k=0.2), momentum, resumes="whole"),
    "resumed onebit": Case(all_(type="onebit"), momentum, resumes="shards"),
    "resumed dithering": Case(all_(type="dithering", k=3), momentum, resumes="shards"),
    "resumed powersgd": Case(
        ({"parameters": MATRICES, "type": "powersgd", "rank": 1},), adam, resumes="shards"
    ),
}
SAVED = ("onebit", "powersgd", "randomk")


def write_strategy(path: Path, sync: str, case: Case, model: nn.Module) -> Path:
    """A strategy with one bucket of all parameters, which compresses some by the case's rules."""
    named = list(model.named_parameters())
    names = [name for name, _ in named if not (case.sparse and name == "words.weight")]
    bucket = {
        "parameters": names,
        "reduce_place": 0,
        "gather_place": 1,
        "sharded": sync != "allreduce",
    }
    data = {
        "schema": 1,
        "runtime": sync,
        "since": 0,
        "bucket_bytes": 0,
        "parameters": [
            {"name": name, "size_bytes": p.nbytes, "layer": ""}
            for name, p in named
            if name in names
        ],
        "buckets": [bucket],
        "accumulation": case.accumulation,
        "compressors": list(case.rules),
    }
    path.write_text(json.dumps(data))
    return path


def compressors_of(case: Case) -> dict[str, dict[str, Any]]:
    """The rule of each compressed parameter, as docs/compression.md has it."""
    from fnmatch import fnmatchcase

    found: dict[str, dict[str, Any]] = {}
    for name, parameter in Net().named_parameters():
        for rule in case.rules:
            matches = any(fnmatchcase(name, pattern) for pattern in rule["parameters"])
            if matches and parameter.nbytes >= rule.get("min_bytes", 0):
                if rule["type"] != "none":
                    found[name] = rule
                break
    return found


def backward(model: Net, iteration: int, part: int, rank: int, case: Case) -> None:
    """One backward pass of a rank; ranks have batches of different sizes."""
    draws = torch.Generator().manual_seed(1000 * iteration + 100 * part + rank)
    count = 4 + 3 * rank
    words = torch.randint(0, 30, (count, 4), generator=draws)
    labels = torch.randint(0, 4, (count,), generator=draws)
    skips = case.skips and rank == 1 and iteration % 2 == 1
    functional.cross_entropy(model(words, skips), labels).backward()


def made(case: Case) -> Net:
    torch.manual_seed(0)
    return Net(case.sparse)


def result(model: Net, optimizer: Optimizer) -> dict[str, Any]:
    return {"parameters": model.state_dict(), "state": optimizer.state_dict()["state"]}


def alone(case: Case, ranks: int) -> dict[str, Any]:
    """What the ranks do together, in one process and by plain torch."""
    model = made(case)
    optimizer = case.optimizer(model)
    references = {
        name: Reference(name, rule, ranks, rule.get("error_feedback", rule["type"] != "dithering"))
        for name, rule in compressors_of(case).items()
    }
    steps: list[list[list[Tensor]]] = []  # gradients of each rank, since the last update
    for iteration in range(ITERATIONS):
        steps.append([])
        for rank in range(ranks):
            model.zero_grad()
            for part in range(case.passes):
                backward(model, iteration, part, rank, case)
            steps[-1].append([gradient_of(parameter) for parameter in model.parameters()])
        if len(steps) < case.accumulation:
            continue
        of_ranks = [mean_of([step[rank] for step in steps]) for rank in range(ranks)]
        steps.clear()
        named = model.named_parameters()
        for (name, parameter), *gradients in zip(named, *of_ranks, strict=True):
            if name in references:
                parameter.grad = references[name].average(gradients)
            else:
                parameter.grad = averaged(gradients)
        if case.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), case.clip_value)
        optimizer.step()
    return result(model, optimizer)


def gradient_of(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def mean_of(steps: list[list[Tensor]]) -> list[Tensor]:
    """The mean of a rank's gradients of several steps, added in their order."""
    if len(steps) == 1:
        return steps[0]
    return [sum(each[1:], each[0]) / len(steps) for each in zip(*steps, strict=True)]


def averaged(gradients: list[Tensor]) -> Tensor:
    """The mean of all ranks' gradients, in rank order; of sparse ones, with all their rows."""
    total = torch.zeros(gradients[0].shape)
    for each in gradients:
        total += each.coalesce().to_dense() if each.is_sparse else each
    total *= 1.0 / len(gradients)
    if not gradients[0].is_sparse:
        return total
    rows = torch.cat([each.coalesce().indices()[0] for each in gradients]).unique()
    return torch.sparse_coo_tensor(rows[None], total[rows], total.shape, is_coalesced=True)


def distribute(case: Case, name: str, options: Options, rank: int) -> tuple[Net, Any]:
    from byteprophet.torch import DistributedOptimizer

    assert options.sync is not None
    path = Path(options.out) / f"{name}-{rank}.json"
    model = made(case)
    optimizer = DistributedOptimizer(
        case.optimizer(model),
        model=model,
        sync=options.sync,
        strategy=write_strategy(path, options.sync, case, model),
        backward_passes_per_step=1 if case.held else case.passes,
    )
    return model, optimizer


def together(name: str, options: Options, rank: int) -> dict[str, Any]:
    """This rank's part of the job."""
    case = CASES[name]
    model, optimizer = distribute(case, name, options, rank)
    saved: dict[str, Any] = {}
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        if case.drops:
            drop(model, optimizer, iteration, rank, case)
        for part in range(case.passes):
            if case.held and part < case.passes - 1:
                with optimizer.no_sync():
                    backward(model, iteration, part, rank, case)
            else:
                backward(model, iteration, part, rank, case)
        if iteration == options.dies_at and rank == 1:
            os._exit(3)
        if case.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), case.clip_value)
        if case.synchronizes:
            optimizer.synchronize()
        optimizer.step()
        if iteration == ITERATIONS // 2:
            if case.resumes:
                parameters = {key: value.clone() for key, value in model.state_dict().items()}
                path = save(case, name, options, rank, optimizer)
                del model, optimizer  # a live tensor keeps its name
                model, optimizer = resumed(case, name, options, rank, parameters, path)
            if options.saves:
                saved = {
                    "whole": optimizer.state_dict(),
                    "shards": optimizer.sharded_state_dict(),
                }
                return {**result(model, optimizer), **saved}
    return result(model, optimizer)


def drop(model: Net, optimizer: Any, iteration: int, rank: int, case: Case) -> None:
    """Compute gradients, and clear them: while they travel, as averages, by hand or before step."""
    backward(model, iteration, 9, rank, case)
    if iteration % 3 == 1:
        optimizer.synchronize()
    if iteration < 2:
        optimizer.zero_grad()
        return
    for parameter in model.parameters():
        parameter.grad = None
    if iteration > 2:
        optimizer.step()


def save(case: Case, name: str, options: Options, rank: int, optimizer: Any) -> Path:
    path = Path(options.out) / f"{name}-{rank}.state"
    whole = case.resumes == "whole"
    torch.save(optimizer.state_dict() if whole else optimizer.sharded_state_dict(), path)
    return path


def resumed(
    case: Case, name: str, options: Options, rank: int, parameters: dict[str, Tensor], path: Path
) -> tuple[Net, Any]:
    """A new model and a new optimizer that go on where others have stopped."""
    model, optimizer = distribute(case, name, options, rank)
    model.load_state_dict(parameters)
    state = torch.load(path)
    if case.resumes == "whole":
        optimizer.load_state_dict(state)
    else:
        optimizer.load_sharded_state_dict(state)
    return model, optimizer


def loaded(name: str, options: Options, rank: int) -> dict[str, Any]:
    """What a job has that loads the whole state of a job of another size; what is refused."""
    states = torch.load(f"{options.loads}/rank-0.pt")[name]
    _, optimizer = distribute(CASES[name], name, options, rank)
    optimizer.load_state_dict(states["whole"])
    found = {"whole": optimizer.state_dict()[KEY]}
    return {**found, "refused": said(lambda: optimizer.load_sharded_state_dict(states["shards"]))}


def said(call: Callable[[], object]) -> str:
    """The error of ``call``; "" if there is none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 (it is what is looked at)
        return f"{type(error).__name__}: {error}"
    return ""


def refusals(options: Options, rank: int) -> dict[str, str]:
    """What is refused, by what was tried. All ranks try the same."""
    from byteprophet.torch import Compression, DistributedOptimizer

    def making(
        rule: dict[str, Any],
        model: nn.Module,
        written_for: nn.Module | None = None,
        **more: Any,
    ) -> str:
        assert options.sync is not None
        path = Path(options.out) / f"refused-{rank}.json"
        case = Case(all_(**rule), sgd)
        write_strategy(path, options.sync, case, written_for or model)
        optimizer = SGD(model.parameters(), lr=0.1)
        return said(lambda: DistributedOptimizer(optimizer, model=model, strategy=path, **more))

    def layers(**named: nn.Module) -> nn.Module:
        return nn.ModuleDict(named)

    onebit = {"type": "onebit"}
    large, small = nn.Linear(4, 8), nn.Linear(4, 4)
    found = {
        "bias": making({"type": "powersgd", "rank": 1}, layers(vector=nn.Linear(9, 9))),
        "other size": making(onebit, layers(other=large), layers(other=small)),
        "missing": making(onebit, layers(here=large), layers(here=large, there=small)),
        "sparse": making(onebit, layers(table=nn.Embedding(4, 4, sparse=True))),
        "float64": making(onebit, layers(wide=nn.Linear(4, 4).double())),
        "fp16": making(onebit, layers(cast=small), compression=Compression.fp16),
    }
    case = Case(all_(**onebit), sgd)
    model, optimizer = distribute(case, "refused", options, rank)
    scaler = torch.amp.GradScaler("cpu")
    backward(model, 0, 0, rank, case)
    found["state_dict"] = said(optimizer.state_dict)
    found["sharded_state_dict"] = said(optimizer.sharded_state_dict)
    found["scaler"] = said(lambda: scaler.step(optimizer))
    optimizer.step()
    found["checkpoint"] = said(lambda: get_optimizer_state_dict(model, optimizer))
    state = optimizer.state_dict()
    found["steps"] = said(
        lambda: optimizer.load_state_dict(state if rank == 0 else without_steps(state))
    )
    found["shape"] = said(lambda: optimizer.load_state_dict(with_other_errors(state)))
    return found


def without_steps(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != KEY}


def with_other_errors(state: dict[str, Any]) -> dict[str, Any]:
    saved = state[KEY]
    parameters = {
        name: {**each, "errors": each["errors"][..., :1]}
        for name, each in saved["parameters"].items()
    }
    return {**state, KEY: {**saved, "parameters": parameters}}


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    results: dict[str, Any]
    if options.sync is None:
        results = {name: alone(case, options.as_ranks) for name, case in CASES.items()}
    else:
        distributed.init_process_group("gloo")
        if options.refusals:
            results = refusals(options, rank)
        elif options.loads:
            results = {name: loaded(name, options, rank) for name in SAVED}
        elif options.late:
            _, optimizer = distribute(CASES["onebit"], "late", options, rank)
            if rank == 0:
                optimizer.state_dict()
            results = {}
        else:
            names = SAVED if options.saves else options.cases or CASES
            results = {name: together(name, options, rank) for name in names}
    torch.save(results, Path(options.out) / f"rank-{rank}.pt")


if __name__ == "__main__":
    main()
