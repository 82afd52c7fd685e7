"""The paced worker process of a job under our own collective runtimes.

``python -m byteprophet.paced.collective_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Gradients and updated
parameters are sent by ``byteprophet.torch.DistributedOptimizer(..., sync=...)``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from byteprophet.errors import JobFailed
from byteprophet.paced import collective_settings
from byteprophet.paced.collective_front import CollectiveFront
from byteprophet.paced.model import PacedModel
from byteprophet.paced.worker import run_worker


class SyncFront(CollectiveFront):
    """Uses our optimizer: ``step`` returns at once, and layers of the next forward wait."""

    runtimes = collective_settings.SYNCS

    def wrap(self, model: PacedModel) -> nn.Module:
        """Return ``model`` itself, because the optimizer adds its own hooks."""
        self._model = model
        return model

    def DistributedOptimizer(  # noqa: N802 (BytePS' name)
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
    ) -> torch.optim.Optimizer:
        """Wrap ``optimizer`` by ``byteprophet.torch.DistributedOptimizer``."""
        # Imported here, so that usage errors appear without waiting until BytePS is loaded.
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
        """Raises ``JobFailed`` if the search for buckets has not ended."""
        from byteprophet.torch.optimizer import is_settled

        if not is_settled(self._optimizer):
            raise JobFailed(
                f"runtime {self.runtime!r}: the search for buckets did not end during warm-up:"
                " use more warm-up iterations"
            )


def fusion(settings: Mapping[str, int]) -> int | str:
    """The optimizer's ``fusion`` argument for ``settings``, which must be complete."""
    if settings["near_layer"]:
        return "near-layer"
    return settings["bucket_bytes"] or ("tuned" if settings["tune"] else "planned")


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.collective_worker", arguments, SyncFront)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
