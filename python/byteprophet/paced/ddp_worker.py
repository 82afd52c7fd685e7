"""The paced worker process of a job under unmodified ``DistributedDataParallel`` over gloo.

``python -m byteprophet.paced.ddp_worker CONFIG.toml``

Trains the same paced model as ``worker.py`` and writes the same results. In addition to the spans
of ``collective_front.py``, it records the collectives of the buckets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.paced.collective_front import CollectiveFront, leave
from byteprophet.paced.model import PacedModel
from byteprophet.paced.worker import run_worker


class DdpFront(CollectiveFront):
    """Uses DistributedDataParallel: gradients are averaged when backward returns."""

    runtimes = ("ddp",)

    def wrap(self, model: PacedModel) -> nn.Module:
        """Wrap ``model`` by DistributedDataParallel."""
        wrapped = DistributedDataParallel(
            model,
            bucket_cap_mb=self.settings["bucket_cap_mb"],
            gradient_as_bucket_view=bool(self.settings["gradient_as_bucket_view"]),
            static_graph=bool(self.settings["static_graph"]),
        )
        if self.spans is not None:
            # Imported here, because byteprophet.torch loads BytePS, which nothing else here needs.
            from byteprophet.torch.recording import ddp_spans

            names = {id(parameter): name for name, parameter in model.named_tensors()}
            ddp_spans.attach(wrapped, self.spans, names)
        return wrapped


def main(arguments: Sequence[str]) -> int:
    """Run the worker that the environment describes, and return the exit status."""
    return run_worker("byteprophet.paced.ddp_worker", arguments, DdpFront)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
