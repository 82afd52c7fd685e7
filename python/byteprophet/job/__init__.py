"""One description of a training job: plain data that every other room takes and gives.

    Model     parameters in forward order, with their layers and the sizes of their gradients
    Times     what workers compute and when, as arrays
    Cluster   hosts and links, and what messages cost
    Strategy  how each gradient becomes the same on all workers: servers, or buckets and their order
    Policy    the scheduler in front of pushes, with its settings
    Job       all five

``as_executed.py`` turns a job's times into those under its strategy, which casts and keeps
gradients.

A job may be measured (``measure/``), read from a workload, or assumed. Changing one is asking
"what if". Nothing here computes anything, and nothing here imports another room.

``Job`` and ``Times`` are imported when they are first asked for: they need numpy, whose import
takes a third of the processor time of ``byteprophet run``, which starts a job without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from byteprophet.job.cluster import Cluster, Costs, Host, Processors
from byteprophet.job.model import Model, Parameter
from byteprophet.job.policy import Policy
from byteprophet.job.strategy import Bucket, Strategy

if TYPE_CHECKING:
    from byteprophet.job.job import Job
    from byteprophet.job.times import Times

_WITH_NUMPY = {"Job": "byteprophet.job.job", "Times": "byteprophet.job.times"}


def __getattr__(name: str) -> Any:
    if name not in _WITH_NUMPY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_WITH_NUMPY[name]), name)
    globals()[name] = value  # the next access is an ordinary one
    return value


__all__ = [
    "Bucket",
    "Cluster",
    "Costs",
    "Host",
    "Job",
    "Model",
    "Parameter",
    "Policy",
    "Processors",
    "Strategy",
    "Times",
]
