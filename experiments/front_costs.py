r"""The processor time that the front takes per gradient, without a network.

    python experiments/front_costs.py
    python experiments/front_costs.py --workloads small --fusion 0 --profile

A paced model whose layers take no time trains in one process, first alone, then under
``DistributedOptimizer``'s front. A stand-in for BytePS' synchroniser ends each transfer at once, in
a thread of its own. Printed are microseconds of processor time per gradient: of the training thread
in each phase of an iteration, and of the whole process. *alone* is the model's and its optimizer's
own; *front* is what the front adds. Processor time is nearly independent of what else the machine
does. ``--profile`` lists the functions in which the training thread spends it. Takes ten seconds
per workload.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich import box
from rich.table import Table
from script import run_script
from small_tensors import workload_of

from byteprophet.cli.lists import split
from byteprophet.paced.gradient import LEARNING_RATE
from byteprophet.paced.model import PacedModel
from byteprophet.paced.worker import keep_freed_memory
from byteprophet.report.console import table_console
from byteprophet.runtime_settings import DEFAULT_FUSION_BYTES, RuntimeSettings
from byteprophet.torch.front.cores import Cores
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
from byteprophet.workload.builtin import load

PHASES = ("zero_grad", "forward", "backward", "step", "process")
_WARMUP = 5


class Instant(Alone):
    """Stands for BytePS: the average is there at once, and another thread says so."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self._sent: queue.SimpleQueue[Done] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit_gradient(
        self, parameter: str, gradient: torch.Tensor, *, priority: int, done: Done
    ) -> None:
        """Let the other thread call ``done``."""
        self._sent.put(done)

    def submit_message(self, name: str, message: torch.Tensor, *, done: Done) -> None:
        """Answer as if the other rank wanted what this one wants."""
        if message.numel() == self.size:  # an integer of every rank; else, rank 0's only
            message[1:] = message[0]
        self._sent.put(done)

    def _run(self) -> None:
        while True:
            self._sent.get()(None)


def _never(*_: Any) -> bool:
    return False


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    table = Table("workload", "gradients", "", *PHASES, box=box.SIMPLE)
    for name in split(options.workloads, "--workloads"):
        workload = load(workload_of(name, options.runs)).scaled(1)
        count = len(workload.tensors)
        alone = _train(PacedModel(workload, 0), None, options, count)
        front = _train(PacedModel(workload, 0), options.fusion, options, count)
        for what, values in (
            ("alone", alone),
            ("front", [after - before for after, before in zip(front, alone, strict=True)]),
        ):
            table.add_row(name, str(count), what, *(f"{value:.1f}" for value in values))
    print("microseconds of processor time per gradient")
    table_console(120).print(table)


def _train(
    model: PacedModel, fusion_bytes: int | None, options: argparse.Namespace, count: int
) -> list[float]:
    """Microseconds per gradient in each of ``PHASES``. ``fusion_bytes`` None: without a front."""
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    if fusion_bytes is not None:
        Cores.are_scarce = _never  # type: ignore[assignment,method-assign]
        optimizer = distribute(
            optimizer,
            list(model.named_tensors()),
            Uncompressed,
            1,
            model=model,
            separable=None,
            synchroniser=FusedSynchroniser(Instant(), fusion_bytes, 30.0),
            settings=RuntimeSettings(),
        )
    signal = torch.zeros(1, 0)
    used: dict[str, list[float]] = {phase: [] for phase in PHASES}
    profile = cProfile.Profile(time.thread_time) if options.profile else None

    def timed(phase: str, work: Callable[[], Any]) -> Any:
        begin_s = time.thread_time()
        result = work()
        used[phase].append((time.thread_time() - begin_s) / count * 1e6)
        return result

    for iteration in range(_WARMUP + options.iterations):
        if profile is not None and iteration == _WARMUP:
            profile.enable()
        process_s = time.process_time()
        timed("zero_grad", optimizer.zero_grad)
        output = timed("forward", lambda: model(signal))
        timed("backward", output.sum().backward)
        timed("step", optimizer.step)
        if fusion_bytes is not None:
            optimizer.finish()
        used["process"].append((time.process_time() - process_s) / count * 1e6)
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return [median(values[_WARMUP:]) for values in used.values()]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what the front costs per gradient.")
    parser.add_argument("--workloads", default="small,mobilenet,efficientnet,densenet201")
    parser.add_argument("--fusion", type=int, default=DEFAULT_FUSION_BYTES, help="bytes per buffer")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
