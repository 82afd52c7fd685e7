"""The paced worker process of a job under ``DistributedDataParallel`` over gloo, as it comes.

``python -m byteprophet.workload.ddp_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. Recorded are, beside what
``collective_front.py`` says, the collectives of its buckets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.workload.collective_front import CollectiveFront, leave
from byteprophet.workload.paced import PacedModel
from byteprophet.workload.worker import run_worker


class DdpFront(CollectiveFront):
    """Gradients are the same everywhere when backward returns."""

    runtimes = ("ddp",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """``model`` in buckets."""
        wrapped = DistributedDataParallel(
            model,
            bucket_cap_mb=self.settings["bucket_cap_mb"],
            gradient_as_bucket_view=bool(self.settings["gradient_as_bucket_view"]),
            static_graph=bool(self.settings["static_graph"]),
        )
        if self.spans is not None:
            # Here, because byteprophet.torch loads BytePS, which nothing else needs.
            from byteprophet.torch import ddp_spans

            ddp_spans.attach(wrapped, self.spans)
        return wrapped


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes; returns the exit status."""
    return run_worker("byteprophet.workload.ddp_worker", arguments, DdpFront)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
