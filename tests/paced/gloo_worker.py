"""A paced worker whose gradients torch.distributed averages: a front without BytePS.

Run as ``python gloo_worker.py RANK SIZE CONFIG RENDEZVOUS`` with ``BYTEPROPHET_RUN`` set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from byteprophet.paced.worker import work
from byteprophet.paced.worker_config import read_worker_config


class AveragingSgd(torch.optim.SGD):
    """Starts summing each gradient when it is there; ``step`` waits for the sums."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self._sums: list[tuple[torch.Tensor, Any]] = []
        for parameter in self.param_groups[0]["params"]:
            parameter.register_post_accumulate_grad_hook(self._start)

    def _start(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        self._sums.append((gradient, distributed.all_reduce(gradient, async_op=True)))

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for gradient, handle in self._sums:
            handle.wait()
            gradient.div_(distributed.get_world_size())
        self._sums.clear()
        super().step(closure)


class Front:
    """What ``worker.work`` asks of ``byteps.torch``."""

    rank = staticmethod(distributed.get_rank)
    size = staticmethod(distributed.get_world_size)

    @staticmethod
    def DistributedOptimizer(
        optimizer: torch.optim.SGD, named_parameters: list[tuple[str, torch.nn.Parameter]]
    ) -> AveragingSgd:
        return AveragingSgd((p for _, p in named_parameters), optimizer.param_groups[0]["lr"])

    @staticmethod
    def broadcast_parameters(parameters: Mapping[str, torch.Tensor], root_rank: int) -> None:
        for values in parameters.values():
            distributed.broadcast(values, root_rank)


def main() -> None:
    rank, size, config, rendezvous = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(size)
    )
    work(read_worker_config(config), Front).write(Path(os.environ["BYTEPROPHET_RUN"]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
