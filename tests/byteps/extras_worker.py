"""A worker that uses what else BytePS offers: many cases in one job, a digest of each.

The script is upstream's; the environment decides what runs it. What must be equal within one job is
checked here, what must be equal between ways of running it by the test.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any
from unittest import TestCase  # which torch has imported; pytest takes a second

import byteps.torch as bps
import torch
from byteps.torch.parallel import DistributedDataParallel
from torch import Tensor, nn

raises = TestCase().assertRaisesRegex
SERVERS = int(os.environ["DMLC_NUM_SERVER"])


class Model(nn.Module):
    """Several partitions in the wide layer, a buffer, a layer that not every pass uses."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(50, 1200, dtype=dtype)
        self.norm = nn.BatchNorm1d(1200, dtype=dtype)
        self.last = nn.Linear(1200, 7, dtype=dtype)
        self.skipped = nn.Linear(3, 3, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def model_of(dtype: torch.dtype = torch.float32) -> Model:
    """The same on every rank."""
    torch.manual_seed(5)
    return Model(dtype)


def loss_of(
    model: nn.Module, number: int, dtype: torch.dtype = torch.float32, rank: int | None = None
) -> Tensor:
    """The loss on batch ``number`` of one rank, by default this one."""
    generator = torch.Generator().manual_seed(
        1000 * (bps.rank() if rank is None else rank) + number
    )
    x = torch.randn(8, 50, generator=generator).to(dtype)
    return model(x).float().square().mean()


def cycle() -> None:
    """Leave the job and come back, with a transfer of the script's own under way."""
    tensor = torch.full((70_000,), float(bps.rank()))
    handle = bps.byteps_push_pull(tensor, average=False, name="own")
    bps.suspend()
    bps.resume(bps.size(), SERVERS, bps.rank())
    bps.synchronize(handle)
    assert torch.equal(tensor, torch.ones(70_000)), "a transfer was lost"


def wrapped(
    label: str,
    dtype: torch.dtype = torch.float32,
    compression: Any = bps.Compression.none,
    passes: int = 1,
    suspend_after: tuple[int, ...] = (),
    suspend_before_step: tuple[int, ...] = (),
) -> list[Tensor]:
    """Six steps with DistributedOptimizer."""
    model = model_of(dtype)
    named = [(f"{label}.{name}", p) for name, p in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named, compression, passes
    )
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        for part in range(passes):
            (loss_of(model, step * passes + part, dtype) / passes).backward()
        if step in suspend_before_step:
            cycle()
        optimizer.step()
        if step in suspend_after:
            cycle()
    return [p.detach() for p in model.parameters()]


def data_parallel(label: str, passes: int = 1, **options: Any) -> list[Tensor]:
    """The same with DistributedDataParallel and a plain optimizer."""
    labelled = nn.Sequential(OrderedDict({label: model_of()}))
    model = DistributedDataParallel(labelled, broadcast_buffers=False, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        with model.no_sync():
            for part in range(passes - 1):
                (loss_of(model, step * passes + part) / passes).backward()
        (loss_of(model, step * passes + passes - 1) / passes).backward()
        model.synchronize()  # a layer was skipped
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def buffers() -> None:
    """Rank 0's statistics reach all ranks before a forward."""
    model, expected = DistributedDataParallel(model_of()), model_of()
    loss_of(model, 1)
    loss_of(expected, 1, rank=0)
    model.eval()
    loss_of(model, 2)
    assert_same(list(model.module.buffers()), list(expected.buffers()), "buffers")


def one_process(
    dtype: torch.dtype = torch.float32, wire: torch.dtype | None = None, passes: int = 1
) -> list[Tensor]:
    """What a single process makes of both ranks' batches, averaging in type ``wire``.

    Two addends have one sum in either order, so jobs of two workers are equal to it bit for bit.
    """
    models = [model_of(dtype) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    for step in range(6):
        for rank, model in enumerate(models):
            model.zero_grad()
            for part in range(passes):
                (loss_of(model, step * passes + part, dtype, rank) / passes).backward()
        for pair in zip(*(m.parameters() for m in models), strict=True):
            first, second = (torch.zeros_like(p) if p.grad is None else p.grad for p in pair)
            mean = (first.to(wire or dtype) + second.to(wire or dtype)).div(2).to(dtype)
            for p in pair:
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in models[0].parameters()]


def compressed(plain: list[Tensor]) -> dict[str, list[Tensor]]:
    """BytePS' own compressors: on a tensor whose result is known, and in training."""
    torch.manual_seed(3)  # the same on all ranks: compressing the sum then loses nothing more
    tensor = torch.randn(50_000)
    bps.declare("one bit", byteps_compressor_type="onebit", byteps_compressor_onebit_scaling=True)
    bps.declare("top", byteps_compressor_type="topk", byteps_compressor_k=50)
    signs = torch.where(tensor < 0, -1.0, 1.0) * tensor.double().abs().mean().float()
    torch.testing.assert_close(bps.push_pull(tensor, name="one bit"), signs)
    largest = torch.zeros_like(tensor)
    places = tensor.abs().topk(50).indices
    largest[places] = tensor[places]
    assert_same([bps.push_pull(tensor, name="top")], [largest], "topk")

    results = {}
    for label, arguments in {
        "onebit": {"byteps_compressor_onebit_scaling": True},
        "topk": {
            "byteps_compressor_k": 0.01,
            "byteps_momentum_type": "nesterov",
            "byteps_momentum_mu": 0.5,
        },
        "randomk": {"byteps_compressor_k": 100, "byteps_seed": 7},
        "dithering": {"byteps_compressor_k": 4, "byteps_seed": 7},
    }.items():
        bps.declare(f"Gradient.{label}.first.weight", byteps_compressor_type=label, **arguments)
        results[label] = wrapped(label)
        assert not torch.equal(results[label][0], plain[0]), f"{label} changed nothing"
    return results


def refused() -> None:
    """A type that BytePS cannot send, and another number of servers."""
    with raises(ValueError, r"torch\.BFloat16Tensor is not supported"):
        bps.byteps_push_pull(torch.zeros(3, dtype=torch.bfloat16), name="brain")
    with raises(ValueError, "was sent already"):
        bps.declare("Gradient.twice.first.weight", byteps_compressor_type="onebit")
    with raises(ValueError, "another number of servers"):
        bps.resume(bps.size(), SERVERS + 1, bps.rank())


def assert_same(a: list[Tensor], b: list[Tensor], what: str) -> None:
    """Bit for bit."""
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), what


def main() -> None:
    """Run all cases; write what the test compares."""
    bps.init()
    fp16 = bps.Compression.fp16
    expected = one_process()
    results = {"plain": wrapped("plain")}
    assert_same(results["plain"], expected, "DistributedOptimizer")
    suspended = wrapped("suspended", suspend_after=(1, 2), suspend_before_step=(3, 4))
    assert_same(suspended, expected, "suspend and resume")
    assert_same(data_parallel("parallel"), expected, "DistributedDataParallel")
    results["fp16"] = wrapped("fp16", compression=fp16)
    assert_same(results["fp16"], one_process(wire=torch.float16), "fp16 compression")
    for mine, exact in zip(results["fp16"], expected, strict=True):
        torch.testing.assert_close(mine, exact, rtol=2e-2, atol=2e-3)
    assert_same(data_parallel("parallel fp16", compression=fp16), results["fp16"], "both")
    expected = one_process(passes=2)
    assert_same(wrapped("twice", passes=2), expected, "two passes")
    assert_same(data_parallel("parallel twice", passes=2), expected, "no_sync")
    for dtype in (torch.float16, torch.float64):
        assert_same(wrapped(str(dtype), dtype), one_process(dtype), str(dtype))
    if bps.DistributedOptimizer.__module__.startswith("byteprophet"):
        dtype = torch.bfloat16
        assert_same(wrapped(str(dtype), dtype), one_process(dtype, torch.float32), str(dtype))
    buffers()
    results |= compressed(results["plain"])
    refused()
    record = {
        name: [tensor.double().sum().item().hex() for tensor in tensors]
        for name, tensors in results.items()
    }
    folder = Path(os.environ["BYTEPROPHET_RUN"]) / "results"
    (folder / f"worker-{bps.rank()}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
