"""What the paced workers of torch.distributed have in common, as ``worker.work`` asks for it.

A runtime is a ``CollectiveFront`` that says in ``wrap`` or ``DistributedOptimizer`` how gradients
become the same on all ranks. Rank and peers are those that torchrun, or the launcher, puts into
the environment. Recorded are the model's own spans and its updates, and what a runtime adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
from torch import distributed, nn

from byteprophet._leaving import leave_now
from byteprophet.errors import UserError
from byteprophet.observe.span_log import SpanLog
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.timeline.tables import Kind
from byteprophet.workload import collective_settings
from byteprophet.workload.paced import PacedModel
from byteprophet.workload.worker_config import WorkerConfig


class CollectiveFront:
    """The functions of ``byteps.torch`` that a paced worker calls, by torch.distributed over gloo.

    ``runtime`` is the config's, one of ``runtimes``; ``settings`` are the complete ones.
    """

    runtimes: ClassVar[tuple[str, ...]]

    def __init__(self, config: WorkerConfig) -> None:
        if config.runtime not in self.runtimes:
            raise UserError(
                f"runtime {config.runtime!r}: this worker is of {' or '.join(self.runtimes)}"
            )
        self.runtime = config.runtime
        self.settings = collective_settings.resolve(self.runtime, config.settings)
        self.workload = config.load_workload()
        self.spans: SpanLog | None = None

    def init(self) -> None:
        """Join the job."""
        timeout_s = RuntimeSettings.from_environment().timeout_s
        distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))

    def rank(self) -> int:
        """Of this process."""
        return distributed.get_rank()

    def size(self) -> int:
        """How many ranks there are."""
        return distributed.get_world_size()

    def broadcast_parameters(self, parameters: Mapping[str, torch.Tensor], root_rank: int) -> None:
        """Give all ranks those of ``root_rank``."""
        for values in parameters.values():
            distributed.broadcast(values, root_rank)

    def prepare(self, model: PacedModel, spans: SpanLog | None) -> nn.Module:
        """What is trained in place of ``model``, whose parameters all ranks share by now."""
        self.spans = spans
        return self.wrap(model)

    def wrap(self, model: PacedModel) -> nn.Module:
        """As ``prepare``; a runtime's own."""
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """``optimizer``, which updates with the gradients that there are when it steps."""
        if self.spans is not None:
            _record_steps(optimizer, self.spans)
        return optimizer

    def check_settled(self) -> None:
        """JobFailed where the runtime still looks for its settings; warm-up has ended."""

    def wait_before_steps(
        self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]
    ) -> None:
        """Have each step of ``optimizer`` begin with ``finish``, which waits for all gradients."""

        def wait(*_: Any) -> None:
            if self.spans is None:
                finish()
                return
            with self.spans.span(Kind.WAIT, "all gradients"):
                finish()

        optimizer.register_step_pre_hook(wait)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """All of a parameter, of which a rank may hold a part; called by all ranks alike."""
        return values.detach()

    def shutdown(self) -> None:
        """Leave the job."""
        distributed.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End the process of a rank at once.

    Gloo's threads live as long as anybody keeps the group, which a wrapped model does to the end.
    One that then lets go of a tensor needs the interpreter, and aborts the process where that is
    already gone (pytorch/pytorch#179291).
    """
    leave_now(status)


def _record_steps(optimizer: torch.optim.Optimizer, spans: SpanLog) -> None:
    begun_ns = 0

    def before(*_: Any) -> None:
        nonlocal begun_ns
        begun_ns = spans.clock()

    def after(*_: Any) -> None:
        spans.add(Kind.UPDATE, "optimizer", begun_ns, spans.clock())

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
