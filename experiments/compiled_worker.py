"""A rank of ``compiled.py``: trains models of which parts are compiled, with slow updates.

    compiled_worker.py BACKEND SYNC=WAY[,WAY ...] [SYNC=WAY[,WAY ...] ...]

A SYNC is one of ``DistributedOptimizer``'s, or ``byteps``. A WAY is
one of ``PARTS``, and ``-late`` behind it where the parts are compiled after four eager iterations.
Updates take a while, so that they are still outstanding when the next iteration begins to compile.
Every way is trained without overlap, then with it. Writes ``compiled-<rank>.json``: per SYNC a list
of both, which has per way the digest of the parameters, and how many frames torch compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._dynamo.utils import counters

BLOCKS = 4
WIDTH = 32
ITERATIONS = 8
LATE = 4
_UPDATE_S = 0.004


class Block(nn.Module):
    """A block of a transformer, without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """A residual update of ``x``."""
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


Run = Callable[[Tensor], Tensor]


def _in_parts(model: nn.Sequential, size: int, backend: str) -> Run:
    blocks = list(model)
    parts = [nn.Sequential(*blocks[first : first + size]) for first in range(0, BLOCKS, size)]
    compiled: list[Any] = [torch.compile(part, backend=backend) for part in parts]
    return nn.Sequential(*compiled)


def _blocks_in_place(model: nn.Sequential, backend: str) -> Run:
    for block in model:
        block.compile(backend=backend)
    return model


def _whole_in_place(model: nn.Sequential, backend: str) -> Run:
    model.compile(backend=backend)
    return model


def _function(model: nn.Sequential, backend: str) -> Run:
    def run(x: Tensor) -> Tensor:
        result: Tensor = model(x)
        return result

    return torch.compile(run, backend=backend)


PARTS: dict[str, Callable[[nn.Sequential, str], Run]] = {
    "eager": lambda model, backend: model,
    "blocks": lambda model, backend: _in_parts(model, 1, backend),
    "halves": lambda model, backend: _in_parts(model, BLOCKS // 2, backend),
    "whole": lambda model, backend: torch.compile(model, backend=backend),
    "blocks-in-place": _blocks_in_place,
    "whole-in-place": _whole_in_place,
    "function": _function,
}


def _wrap(optimizer: torch.optim.Optimizer, model: nn.Module, sync: str, label: str) -> Any:
    from byteprophet.torch import DistributedOptimizer

    # Names of their own: what torch has compiled may keep the models before alive, or not.
    named = [(f"{label}.{name}", parameter) for name, parameter in model.named_parameters()]
    return DistributedOptimizer(optimizer, named_parameters=named, sync=sync)


def _train(sync: str, backend: str, way: str, rank: int, overlap: str) -> dict[str, Any]:
    os.environ["BYTEPROPHET_OVERLAP"] = overlap
    torch.compiler.reset()
    counters.clear()
    make = PARTS[way.removesuffix("-late")]
    torch.manual_seed(3)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    late = way.endswith("-late")
    run: Run = model if late else make(model, backend)
    optimizer = _wrap(
        torch.optim.AdamW(model.parameters(), lr=1e-2), model, sync, sync + way + overlap
    )
    for iteration in range(ITERATIONS):
        if late and iteration == LATE:
            run = make(model, backend)
        generator = torch.Generator().manual_seed(100 * iteration + rank)
        x = torch.randn(16, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss: Any = run(x).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.finish()
    values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    order = optimizer._front._order.order
    return {
        "digest": hashlib.sha256(values).hexdigest()[:12],
        "compiled": counters["frames"]["ok"],
        "ordered": order is not None,
    }


def _train_all(sync: str, backend: str, ways: Sequence[str]) -> list[dict[str, Any]]:
    """Train every way without overlap, then with it."""
    if sync == "byteps":
        import byteprophet.torch as bps

        bps.init()
        rank = bps.rank()
    else:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
    results = [{way: _train(sync, backend, way, rank, overlap) for way in ways} for overlap in "01"]
    if sync == "byteps":
        bps.shutdown()
    else:
        distributed.barrier()
        distributed.destroy_process_group()
    return results


def main() -> None:
    """Train every way under every synchroniser, write what came out."""
    backend, *given = sys.argv[1:]
    torch.set_num_threads(1)
    adam = sys.modules["torch.optim.adam"]
    plain = adam.adam

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(_UPDATE_S)
        return plain(*arguments, **options)

    adam.adam = slow  # type: ignore[attr-defined]
    results = {}
    for each in given:
        sync, _, ways = each.partition("=")
        results[sync] = _train_all(sync, backend, ways.split(","))
    path = Path(os.environ["BYTEPROPHET_RUN"]) / f"compiled-{os.environ['RANK']}.json"
    path.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
