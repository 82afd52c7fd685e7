"""Which errors of collectives and stores mean that another rank is gone or late."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from byteprophet.errors import PeerLost, TimedOut
from byteprophet.torch.sync.failures import of_collective

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547]"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (distributed.DistBackendError("NCCL error: remote process exited"), PeerLost),
        (distributed.DistNetworkError("Connection reset by peer"), PeerLost),
        (distributed.DistStoreError("wait timeout after 100ms"), TimedOut),
        (RuntimeError(f"{GLOO} Connection closed by peer [127.0.0.1]:3"), PeerLost),
        (RuntimeError(f"{GLOO} Timed out waiting 100ms for recv operation"), TimedOut),
        (RuntimeError("Invalid scalar type"), RuntimeError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError),
        (OSError("no such device"), RuntimeError),
    ],
)
def test_others_are_blamed_for_what_they_have_caused(
    error: Exception, kind: type[Exception]
) -> None:
    made = of_collective(error, "what happened")
    assert type(made) is kind
    assert str(made) == "what happened"
