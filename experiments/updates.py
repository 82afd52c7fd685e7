"""What ``step()`` costs: torch's optimizers beside ours, which update in the order of arrival.

    python experiments/updates.py

Parameters of the sizes of real models, in one process, one thread per operation, nothing sent: all
averages are there when ``step()`` is called. Printed is the processor time of ``step()`` until all
parameters are updated, of all threads of the process, in milliseconds: of torch's own code (its
default for the CPU, ``foreach=True`` and ``fused=True``), and of our front with the default and
with ``fused=True``. The training thread sleeps until all is updated, as if it computed. All take
turns, and each figure is the least and the median of the turns.

Ours must give the same parameters as torch's with the same options, bit for bit; the exit status is
1 if not. Kernels of ``fused=True`` round in another way than the default, so the two are compared
only with themselves. Takes a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from script import run_script
from torch import Tensor, nn

from byteprophet.cli.lists import split
from byteprophet.errors import JobFailed, UserError
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.torch.optimizer import Uncompressed, distribute
from byteprophet.torch.sync.alone import Alone
from byteprophet.workload import load

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}),
    "adam": (torch.optim.Adam, {"lr": 1e-3}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-3}),
}
_WARMUP = 3  # steps in which state is made and the forward order is agreed
_LOOK_S = 0.01


@dataclass(frozen=True)
class Way:
    """A way to update: by our front or by torch alone, with options of the optimizer."""

    name: str
    ours: bool
    options: dict[str, Any]


WAYS = (
    Way("torch", ours=False, options={}),
    Way("foreach", ours=False, options={"foreach": True}),
    Way("fused", ours=False, options={"fused": True}),
    Way("ours", ours=True, options={}),
    Way("ours fused", ours=True, options={"fused": True}),
)
_EQUAL = (("torch", "ours"), ("fused", "ours fused"))


class _Layer(nn.Module):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((elements,), 0.5))

    def forward(self, signal: Tensor) -> Tensor:
        """Nothing; but now is when it would read its parameter."""
        return signal


class Training:
    """A model, its optimizer and its gradients, which no step changes."""

    def __init__(
        self, sizes: Sequence[int], gradients: Sequence[Tensor], optimizer: str, way: Way
    ) -> None:
        self.way = way
        layers = [_Layer(elements) for elements in sizes]
        self.model = nn.Sequential(*layers)
        self.parameters = [layer.weight for layer in layers]
        self._gradients = gradients
        kind, options = OPTIMIZERS[optimizer]
        self.optimizer: Any = kind(self.parameters, **options, **way.options)
        if way.ours:
            self.optimizer = distribute(
                self.optimizer,
                self.model.named_parameters(),
                Uncompressed,
                1,
                model=None,
                separable=None,
                synchroniser=Alone(),
                settings=RuntimeSettings(),
            )

    def step(self) -> int:
        """One step; returns its processor time in nanoseconds."""
        self.model(torch.zeros(1))
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        if self.way.ours:  # a backward pass would have submitted them
            front = self.optimizer._front
            for parameter in reversed(self.parameters):
                front.gradients.submit(front.gradients.slots[id(parameter)])
        began_ns = time.process_time_ns()
        self.optimizer.step()
        while self.way.ours and self.optimizer._front.updater.outstanding:
            time.sleep(_LOOK_S)
        taken_ns = time.process_time_ns() - began_ns
        if self.way.ours:
            self.optimizer.finish()  # raises what has failed
        return taken_ns


def main(arguments: Sequence[str]) -> None:
    """Train in turns, compare, print."""
    parser = argparse.ArgumentParser(
        description="Compare the processor time of our updates with torch's.",
        epilog="example: python experiments/updates.py --models bert-base --optimizers adamw",
    )
    parser.add_argument("--models", default="resnet50,bert-base")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args(arguments)
    if options.turns < 1:
        raise UserError(f"--turns {options.turns}: must be at least 1")
    optimizers = split(options.optimizers, "--optimizers")
    for name in optimizers:
        if name not in OPTIMIZERS:
            raise UserError(f"--optimizers: {name!r}: choose from {', '.join(OPTIMIZERS)}")
    torch.set_num_threads(1)
    table = Table("model", "optimizer", box=box.SIMPLE)
    for way in WAYS:
        table.add_column(f"{way.name} ms", justify="right")
    for model in split(options.models, "--models"):
        sizes = [tensor.elements for tensor in load(model).tensors]
        for optimizer in optimizers:
            measured_ms = compare(sizes, optimizer, options.turns)
            table.add_row(
                model,
                optimizer,
                *("{:.1f} ({:.1f})".format(*measured_ms[way.name]) for way in WAYS),
            )
    Console(width=110).print(table)


def compare(sizes: Sequence[int], optimizer: str, turns: int) -> dict[str, tuple[float, float]]:
    """The least and the median milliseconds of each way.

    Raises ``JobFailed`` if parameters differ that must be equal.
    """
    lot = torch.Generator().manual_seed(1)
    gradients = [torch.randn(elements, generator=lot) for elements in sizes]
    trainings = {way.name: Training(sizes, gradients, optimizer, way) for way in WAYS}
    taken_ns: dict[str, list[int]] = {name: [] for name in trainings}
    for turn in range(_WARMUP + turns):
        for name, training in trainings.items():
            step_ns = training.step()
            if turn >= _WARMUP:
                taken_ns[name].append(step_ns)
    for one, other in _EQUAL:
        pairs = zip(trainings[one].parameters, trainings[other].parameters, strict=True)
        if not all(torch.equal(mine, its) for mine, its in pairs):
            raise JobFailed(f"{optimizer}: the parameters of {one!r} and {other!r} differ")
    return {name: (min(each) / 1e6, median(each) / 1e6) for name, each in taken_ns.items()}


if __name__ == "__main__":
    run_script(main)
