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
"""

from __future__ import annotations

from byteprophet.job.cluster import Cluster, Costs, Host, Processors
from byteprophet.job.job import Job
from byteprophet.job.model import Model, Parameter
from byteprophet.job.policy import Policy
from byteprophet.job.strategy import Bucket, Strategy
from byteprophet.job.times import Times

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
