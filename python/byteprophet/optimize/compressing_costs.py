"""What compressing gradients takes on this host, measured once per process, kind and size.

A compressor does here what it does in a job (``torch/sync/compressing.py``): it adds an error,
looks for values that are not finite, makes a form, and averages the forms of all ranks. Nothing
travels: all ranks' forms are copies of one. One thread works, as in a rank whose cores are busy
with other ranks. What is measured is its processor time, as a replay takes it: where ranks share
cores, compressing then takes longer there. The lower quartile of a few rounds leaves out what other
processes did to caches meanwhile.
Gradients of more than ``_MOST_ELEMENTS`` take as much longer as they are larger. torch is imported
only if gradients are compressed.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace

import numpy as np

from byteprophet.job import Job
from byteprophet.job.cluster import Compressing
from byteprophet.job.compression import ELEMENT_BYTES, Compressor, RandomK, TopK
from byteprophet.order_statistics import quantile

_MOST_ELEMENTS = 1 << 20
_ROUNDS = 5
_QUARTILE = 0.25


def with_compressing_costs(job: Job) -> Job:
    """``job`` with what its compressors cost on this host, unless its record tells that already."""
    costs = job.cluster.costs
    known = {each.parameter: each for each in costs.compressing}
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    found = []
    for name, compressor in job.strategy.compressor_of.items():
        if name not in known:
            elements = sizes[name] // ELEMENT_BYTES
            before_ns, after_ns = compressing_ns(compressor, elements, job.workers)
            known[name] = Compressing(name, before_ns, after_ns)
        found.append(known[name])
    if tuple(found) == costs.compressing:
        return job
    return replace(
        job, cluster=replace(job.cluster, costs=replace(costs, compressing=tuple(found)))
    )


def compressing_ns(compressor: Compressor, elements: int, ranks: int) -> tuple[int, int]:
    """How long a gradient of so many elements takes before its form travels, and after, in ns."""
    measured = min(elements, _MOST_ELEMENTS)
    factor = elements / measured
    if isinstance(compressor, TopK | RandomK) and compressor.k >= 1:
        compressor = replace(compressor, k=max(1, math.floor(compressor.k / factor)))
    before_ns, after_ns = _measured_ns(compressor, measured, ranks)
    return round(before_ns * factor), round(after_ns * factor)


@functools.cache
def _measured_ns(compressor: Compressor, elements: int, ranks: int) -> tuple[float, float]:
    import torch

    from byteprophet.torch.compressors.make import steps_of
    from byteprophet.torch.compressors.steps import AllGather, Turn

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(elements, generator=generator)
    error = torch.randn(elements, generator=generator)
    before_ns, after_ns = [], []
    try:
        for step in range(_ROUNDS):
            begin_ns = time.thread_time_ns()
            values = gradient.flatten().clone()
            values += error
            float(values.abs().max())
            turn = Turn("measured", values, (elements,), step, 0, ranks, {})
            steps = steps_of(compressor, turn)
            wanted = next(steps)
            forms = wanted.own
            if isinstance(wanted, AllGather):
                forms = torch.zeros((ranks, wanted.own.numel()), dtype=wanted.own.dtype)
                forms[0] = wanted.own
            sent_ns = time.thread_time_ns()
            forms[:] = wanted.own
            arrived_ns = time.thread_time_ns()
            try:
                steps.send(forms)
            except StopIteration as over:
                gradient.copy_(over.value.average)
                float(over.value.residual.abs().max())
            end_ns = time.thread_time_ns()
            gradient = torch.randn(elements, generator=generator)
            before_ns.append(sent_ns - begin_ns)
            after_ns.append(end_ns - arrived_ns)
    finally:
        torch.set_num_threads(threads)
    return quantile(np.array(before_ns), _QUARTILE), quantile(np.array(after_ns), _QUARTILE)
