"""Measures costs on this machine's CPU or GPU, with PyTorch.

Matrix products of many shapes, in bf16 on a GPU and in fp32 on a CPU; operators that memory limits;
adding large tensors, for the memory bandwidth; and very small operators, for the host's time per
launch: on a GPU in a small model's training, on a CPU behind each other. Attention, products with a
transposed matrix, and on a GPU convolutions and others are measured by shape
(``collect_kernels.py``). Times of a GPU are taken between events of its stream, behind a busy wait.
On a CPU with one thread, they are its processor time.

All is measured in several passes, since other programs, or the neighbours of a virtual machine,
slow a device down for milliseconds or minutes. A time is the least of all passes. Of a pass, the
least time of a CPU counts, and the median time of a GPU, whose clock falls while it is busy.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from byteprophet.errors import UserError
from byteprophet.simulate.costs.collect_collectives import in_job, measured_collectives
from byteprophet.simulate.costs.collect_kernels import (
    measured_attention,
    measured_convolutions,
    measured_transposed,
    measured_unaligned,
    training_launch_ns,
    update_bytes_per_s,
)
from byteprophet.simulate.costs.collect_operators import measured_operators
from byteprophet.simulate.costs.kept_passes import KeptPasses
from byteprophet.simulate.costs.table import CostTable
from byteprophet.simulate.costs.taking_turns import Run, in_turn, sets

DEVICES = ("cpu", "cuda")
_SIZES = {"cpu": (64, 128, 256, 512, 1024, 2048), "cuda": (128, 512, 1024, 2048, 4096, 8192, 16384)}
_MEMORY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_ATTENTION = {"cpu": (4, 8, 512, 64), "cuda": (4, 32, 4096, 128)}
"""Samples, heads, tokens, and width of a head."""
PASSES = 4
_REPEATS, _MOST_REPEATS, _ENOUGH_NS = 3, 50, 1e7
"""Short operators run more often: their times differ more."""
_LAUNCHES = 1_000
_BUSY_CYCLES = 500_000
"""A GPU is busy for about 0.3 ms while the host launches what is measured."""
Row = TypeVar("Row", bound="tuple[Any, ...]")


def collect(
    device: str,
    seconds: float,
    say: Callable[[str], None],
    passes: int = PASSES,
    kept: KeptPasses | None = None,
) -> CostTable:
    """Measure all costs of a device.

    Args:
        device: "cpu" or "cuda"; empty: a GPU if there is one.
        seconds: for plain matrix products in all passes; shapes for which no time is left are
            skipped, the largest first. All else takes as long as it takes.
        say: is told how far it is.
        passes: how many; those of several calls can be joined by ``fastest``.
        kept: gets every pass, and has those of an interrupted call, which are not measured again.

    Raises:
        UserError: PyTorch is missing, or the device, or the device's memory is in use.
    """
    torch = _torch()
    device = _device(torch, device)
    try:
        with torch.no_grad():
            return _Collector(torch, device).collect(seconds, say, passes, kept)
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            f"costs collect: the GPU has too little free memory: {str(error).splitlines()[0]} "
            "End what else uses it; complete passes are kept"
        ) from None


def collect_in_job(
    device: str,
    seconds: float,
    say: Callable[[str], None],
    passes: int = PASSES,
    kept: KeptPasses | None = None,
) -> CostTable | None:
    """Measure in a job, which has one rank on each node: rank 0 as ``collect`` does, then all.

    Returns:
        The table, with collectives between the ranks; None on other ranks than 0.

    Raises:
        UserError: as ``collect``.
    """
    torch = _torch()
    device = _device(torch, device)
    with in_job(torch, device, seconds) as distributed:
        first = distributed.get_rank() == 0
        table = collect(device, seconds, say, passes, kept) if first else None
        silent = say if first else lambda _: None
        collectives = tuple(measured_collectives(torch, device, silent))
    return table and replace(table, collectives=collectives)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UserError("costs collect: needs PyTorch: pip install byteprophet[torch]") from None
    return torch


def _device(torch: Any, device: str) -> str:
    there = torch.cuda.is_available()
    device = device or ("cuda" if there else "cpu")
    if device == "cuda" and not there:
        raise UserError("--device cuda: PyTorch sees no GPU")
    return device


def fastest(tables: Sequence[CostTable]) -> CostTable:
    """The least of each time in ``tables``, which are of one device."""
    return replace(
        tables[0],
        products=_least(table.products for table in tables),
        memory_bytes_per_s=max(table.memory_bytes_per_s for table in tables),
        attention_flops_per_s=max(table.attention_flops_per_s for table in tables),
        launch_ns=min(table.launch_ns for table in tables),
        update_bytes_per_s=max(table.update_bytes_per_s for table in tables),
        operators=_least(table.operators for table in tables),
        attention=_least(table.attention for table in tables),
        convolutions=_least(table.convolutions for table in tables),
        unaligned=_least(table.unaligned for table in tables),
        transposed=_least(table.transposed for table in tables),
    )


def _least(lists: Iterable[Iterable[Row]]) -> tuple[Row, ...]:
    """Rows that end with a time: of several that begin alike, the fastest."""
    found: dict[Any, Any] = {}
    for row in chain.from_iterable(lists):
        found[row[:-1]] = min(row, found.get(row[:-1], row), key=lambda one: float(one[-1]))
    return tuple(found.values())


class _Collector:
    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def collect(
        self, seconds: float, say: Callable[[str], None], passes: int, kept: KeptPasses | None
    ) -> CostTable:
        tables = [] if kept is None else kept.read(self._source())[:passes]
        if tables:
            say(f"goes on after pass {len(tables)} of {passes}, kept by an interrupted call")
        for number in range(len(tables) + 1, passes + 1):
            prefix = f"pass {number} of {passes}: " if passes > 1 else ""
            tables.append(self._pass(seconds / passes, lambda text: say(prefix + text)))  # noqa: B023
            if kept is not None:
                kept.keep(number, tables[-1])
        return fastest(tables)

    def _pass(self, seconds: float, say: Callable[[str], None]) -> CostTable:
        torch = self._torch
        memory = self._memory()
        launch_ns = self._launch()
        attention = self._attention()
        operators = tuple(measured_operators(torch, self._device, self._dtype, self._taken_ns))
        kernels = self._kernels()
        products: list[tuple[int, int, int, float]] = []
        shapes = list(self._shapes())
        began = time.monotonic()
        for at, (m, n, k) in enumerate(shapes, 1):
            if products and time.monotonic() - began > seconds:
                say(f"no time for the {len(shapes) - at + 1} largest matrix products")
                break
            products.append((m, n, k, self._taken_ns(self._product(m, n, k))))
            if at % 20 == 0:
                say(f"{at} of {len(shapes)} matrix products")
        return CostTable(
            self._source(),
            tuple(products),
            memory,
            attention,
            launch_ns,
            operators=operators,
            **kernels,
        )

    def _product(self, m: int, n: int, k: int) -> Run:
        factors = [
            self._torch.rand(size, device=self._device, dtype=self._dtype)
            for size in ((m, k), (k, n))
        ]
        multiply = self._torch.matmul
        return in_turn([partial(multiply, *own) for own in sets(self._device, factors)])

    def _kernels(self) -> dict[str, Any]:
        """What depends on shapes besides plain matrix products."""
        about = self._torch, self._device, self._dtype, self._taken_ns
        found: dict[str, Any] = {
            "attention": tuple(measured_attention(*about)),
            "transposed": tuple(measured_transposed(*about)),
            "update_bytes_per_s": update_bytes_per_s(self._torch, self._device, self._taken_ns),
        }
        if self._device == "cpu":
            return found
        return found | {
            "convolutions": tuple(measured_convolutions(*about)),
            "unaligned": tuple(measured_unaligned(*about)),
        }

    def _shapes(self) -> Iterator[tuple[int, int, int]]:
        """The smallest products first."""
        sizes = _SIZES[self._device]
        shapes = ((m, n, k) for m in sizes for n in sizes for k in sizes)
        return iter(sorted(shapes, key=lambda one: one[0] * one[1] * one[2]))

    def _memory(self) -> float:
        """Bytes read and written per second."""
        count = _MEMORY_BYTES[self._device] // 4
        one, other = (self._torch.rand(count, device=self._device) for _ in range(2))
        out = self._torch.empty_like(one)
        time_ns = self._taken_ns(lambda: self._torch.add(one, other, out=out))
        return 3 * 4 * count / time_ns * 1e9

    def _attention(self) -> float:
        """FLOPs per second of fused causal attention, forward."""
        batch, heads, tokens, width = _ATTENTION[self._device]
        query, key, value = (
            self._torch.rand((batch, heads, tokens, width), device=self._device, dtype=self._dtype)
            for _ in range(3)
        )
        fused = self._torch.nn.functional.scaled_dot_product_attention
        time_ns = self._taken_ns(lambda: fused(query, key, value, is_causal=True))
        # Two products over the lower half of the scores.
        return 2 * batch * heads * tokens**2 * width / time_ns * 1e9

    def _launch(self) -> float:
        """The host's time per operator."""
        if self._device == "cuda":
            return training_launch_ns(self._torch, self._device, self._wait)
        small = self._torch.zeros(1, device=self._device)
        times = []
        for _ in range(_REPEATS):
            self._wait()
            began = time.perf_counter_ns()
            for _ in range(_LAUNCHES):
                small.add_(1)
            times.append((time.perf_counter_ns() - began) / _LAUNCHES)
        self._wait()
        return statistics.median(times)

    def _taken_ns(self, run: Callable[[], object]) -> float:
        run()  # allocates, and chooses a kernel
        times: list[float] = []
        while len(times) < _REPEATS or (len(times) < _MOST_REPEATS and sum(times) < _ENOUGH_NS):
            times.append(self._time_ns(run))
        return min(times) if self._device == "cpu" else statistics.median(times)

    def _time_ns(self, run: Callable[[], object]) -> float:
        if self._device == "cpu":
            # With one thread, what else runs on the machine does not count.
            alone = self._torch.get_num_threads() == 1
            now_ns = time.thread_time_ns if alone else time.perf_counter_ns
            began = now_ns()
            run()
            return float(now_ns() - began)
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._torch.cuda._sleep(_BUSY_CYCLES)  # so that the host's time is not in it
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6

    def _wait(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def _source(self) -> str:
        torch = self._torch
        if self._device == "cuda":
            name = torch.cuda.get_device_name()
        else:
            name = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
        kind = str(self._dtype).removeprefix("torch.")
        return f"measured on {name}, PyTorch {torch.__version__}, {kind}"
