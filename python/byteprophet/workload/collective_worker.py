"""The paced worker process of a job under our own collective runtimes.

``python -m byteprophet.workload.collective_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results; gradients, and updated
parameters, travel as ``byteprophet.torch.DistributedOptimizer(..., sync=...)`` has them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from byteprophet.errors import JobFailed
from byteprophet.workload import collective_settings
from byteprophet.workload.collective_front import CollectiveFront
from byteprophet.workload.paced import PacedModel
from byteprophet.workload.worker import run_worker


class SyncFront(CollectiveFront):
    """``step`` returns at once; layers of the next forward wait for what they need."""

    runtimes = collective_settings.SYNCS

    def wrap(self, model: PacedModel) -> nn.Module:
        """``model`` itself: the optimizer puts its hooks there."""
        self._model = model
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """``optimizer`` under our front."""
        # Here, because a usage error must not have to wait for BytePS to load.
        import byteprophet.torch as front

        wrapped: Any = front.DistributedOptimizer(
            optimizer,
            named_parameters=named_parameters,
            model=self._model,
            sync=self.runtime,
            fusion=fusion(self.settings),
        )
        result: torch.optim.Optimizer = wrapped
        self._optimizer = result
        return result

    def check_settled(self) -> None:
        """Whether groups are planned, or searched."""
        from byteprophet.torch.optimizer import is_settled

        if not is_settled(self._optimizer):
            raise JobFailed(
                f"runtime {self.runtime!r}: warm-up has ended, and groups are still looked for:"
                " let it have more iterations"
            )


def fusion(settings: Mapping[str, int]) -> int | str:
    """The argument of the optimizer that says what a group is; complete ``settings`` in."""
    if settings["near_layer"]:
        return "near-layer"
    return settings["buffer_bytes"] or ("tuned" if settings["tune"] else "planned")


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes; returns the exit status."""
    return run_worker("byteprophet.workload.collective_worker", arguments, SyncFront)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
