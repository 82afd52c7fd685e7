"""Common code of the paced workers over torch.distributed, in the form that ``worker.work`` needs.

Each runtime is a subclass of ``CollectiveFront`` whose ``wrap`` or ``DistributedOptimizer`` makes
gradients the same on all ranks. Rank and peers come from the environment, as set by torchrun or the
launcher. Recorded are the model's own spans, the optimizer's updates, and the runtime's spans.
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
from byteprophet.paced import collective_settings
from byteprophet.paced.model import PacedModel
from byteprophet.paced.worker_config import WorkerConfig
from byteprophet.runtime_settings import RuntimeSettings
from byteprophet.timeline.tables import Kind


class CollectiveFront:
    """The functions of ``byteps.torch`` that a paced worker calls, over torch.distributed and gloo.

    ``runtime`` is the runtime of the configuration, one of ``runtimes``. ``settings`` holds all
    settings of the runtime, including defaults.
    """

    runtimes: ClassVar[tuple[str, ...]]

    def __init__(self, config: WorkerConfig) -> None:
        if config.runtime not in self.runtimes:
            raise UserError(
                f"runtime {config.runtime!r}: this worker is for {' or '.join(self.runtimes)}"
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
        """The rank of this process."""
        return distributed.get_rank()

    def size(self) -> int:
        """The number of ranks."""
        return distributed.get_world_size()

    def broadcast_parameters(self, parameters: Mapping[str, torch.Tensor], root_rank: int) -> None:
        """Copy the parameters of ``root_rank`` to all ranks."""
        for values in parameters.values():
            distributed.broadcast(values, root_rank)

    def prepare(self, model: PacedModel, spans: SpanLog | None) -> nn.Module:
        """The module to train in place of ``model``, whose parameters are equal on all ranks."""
        self.spans = spans
        return self.wrap(model)

    def wrap(self, model: PacedModel) -> nn.Module:
        """The module to train in place of ``model``. Runtimes override this."""
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """Return ``optimizer``, which uses the gradients as they are when it steps."""
        if self.spans is not None:
            _record_steps(optimizer, self.spans)
        return optimizer

    def check_settled(self) -> None:
        """Raises ``JobFailed`` if the runtime is still tuning at the end of warm-up."""

    def wait_before_steps(
        self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]
    ) -> None:
        """Make each step of ``optimizer`` call ``finish`` first, which waits for all gradients."""

        def wait(*_: Any) -> None:
            if self.spans is None:
                finish()
                return
            with self.spans.span(Kind.WAIT, "all gradients"):
                finish()

        optimizer.register_step_pre_hook(wait)

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """The whole of a parameter, of which a rank may hold a shard. All ranks must call this."""
        return values.detach()

    def shutdown(self) -> None:
        """Leave the job."""
        distributed.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End the process of a rank at once.

    Gloo's threads live as long as the process group, which a wrapped model keeps to the end. A
    thread that releases a tensor after the interpreter is gone aborts the process
    (pytorch/pytorch#179291).
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
