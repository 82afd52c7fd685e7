"""Measures costs on this machine's CPU or GPU, with PyTorch.

Matrix products of many shapes, in bf16 on a GPU and in fp32 on a CPU; adding large tensors, for the
memory bandwidth; and very small operators behind each other, for the host's time per launch.
Each time is the median of several. On a GPU, they are taken between events of its stream.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from byteprophet.errors import UserError
from byteprophet.simulate.costs.table import CostTable

DEVICES = ("cpu", "cuda")
_SIZES = {"cpu": (64, 256, 1024, 2048), "cuda": (128, 512, 1024, 2048, 4096, 8192, 16384)}
_MEMORY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
_REPEATS = 5
_LAUNCHES = 1_000


def collect(device: str, seconds: float, say: Callable[[str], None]) -> CostTable:
    """Measure for about ``seconds``.

    Args:
        device: "cpu" or "cuda"; empty: a GPU if there is one.
        seconds: how long; shapes for which no time is left are skipped, the largest first.
        say: is told how far it is.

    Raises:
        UserError: PyTorch is missing, or the device.
    """
    try:
        import torch
    except ImportError:
        raise UserError("costs collect: needs PyTorch: pip install byteprophet[torch]") from None
    there = torch.cuda.is_available()
    device = device or ("cuda" if there else "cpu")
    if device == "cuda" and not there:
        raise UserError("--device cuda: PyTorch sees no GPU")
    with torch.no_grad():
        return _Collector(torch, device).collect(seconds, say)


class _Collector:
    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32

    def collect(self, seconds: float, say: Callable[[str], None]) -> CostTable:
        torch = self._torch
        memory = self._memory()
        launch_ns = self._launch()
        began = time.monotonic()
        products: list[tuple[int, int, int, float]] = []
        shapes = list(self._shapes())
        for at, (m, n, k) in enumerate(shapes, 1):
            if products and time.monotonic() - began > seconds:
                say(f"no time for the {len(shapes) - at + 1} largest matrix products")
                break
            left, right = (
                torch.rand(size, device=self._device, dtype=self._dtype)
                for size in ((m, k), (k, n))
            )
            products.append((m, n, k, self._median_ns(lambda a=left, b=right: a @ b)))  # type: ignore[misc]
            if at % 20 == 0:
                say(f"{at} of {len(shapes)} matrix products")
        return CostTable(self._source(), tuple(products), memory, launch_ns=launch_ns)

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
        time_ns = self._median_ns(lambda: self._torch.add(one, other, out=out))
        return 3 * 4 * count / time_ns * 1e9

    def _launch(self) -> float:
        """The host's time per operator."""
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

    def _median_ns(self, run: Callable[[], object]) -> float:
        run()  # allocates, and chooses a kernel
        return statistics.median(self._time_ns(run) for _ in range(_REPEATS))

    def _time_ns(self, run: Callable[[], object]) -> float:
        if self._device == "cpu":
            began = time.perf_counter_ns()
            run()
            return float(time.perf_counter_ns() - began)
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
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
