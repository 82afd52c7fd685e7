"""Measures the parameters of a job with servers one by one, also those that share buffers.

``servers.py`` measures what was sent, which may be buffers of several gradients. The spans of a
worker name parameters, and tell when each gradient was ready, as in a job without servers.
"""

from __future__ import annotations

from byteprophet.errors import UserError
from byteprophet.job import Job, Model, Parameter, Times
from byteprophet.measure.computation import Computation, times_of
from byteprophet.measure.processors import Clocks, Use, served_arrivals
from byteprophet.measure.run import Run
from byteprophet.measure.tensors import by_rank, check_extent, iterations_since
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SPANS, TRANSFERS, Kind


def measure_parameters(
    run: Run, job: Job, since: int | None = None, use: Use | None = None
) -> tuple[Model, Times]:
    """The parameters of ``job``, which ``run`` recorded, and their times.

    The times have as many passes as those of ``job``. They cover the last consecutive iterations
    that all workers recorded completely, from ``since`` on, or, without it, since gradients share
    the last buffers. Raises ``UserError`` if there are none, or if the sizes of some parameters
    were not recorded. ``use``: of the cores that roles share; None: the times are those of the wall
    clock.
    """
    recorded, ranks = run.aligned.events, range(job.workers)
    spans = by_rank(recorded, SPANS, ranks)
    try:
        numbers = iterations_since(spans, run.fused.since if since is None else since)
    except UserError as error:
        raise run.refusal(error) from None
    names = [name for tensor in job.model.names for name in run.fused.of(tensor)]
    sizes_bytes = gradient_sizes_bytes(spans[0])
    unknown = [name for name in names if name not in sizes_bytes]
    if unknown:
        raise run.refusal(UserError(f"has no size of the gradient of {unknown[0]!r}"))
    check_extent(len(numbers), len(names))
    clocks = None
    if use is not None:
        sent = [served_arrivals(each.rows) for each in by_rank(recorded, TRANSFERS, ranks)]
        clocks = Clocks(spans, sent, use)
    computed = [Computation(events, names, numbers, clocks) for events in spans]
    model = Model(tuple(Parameter(name, sizes_bytes[name]) for name in names))
    return model, times_of(computed, job.times.passes)


def gradient_sizes_bytes(spans: Events) -> dict[str, int]:
    """The sizes of a worker's gradients in their own type, by parameter."""
    rows = spans.rows[spans.rows["kind"] == Kind.BACKWARD]
    sized = rows[rows["size_bytes"] > 0][["name", "size_bytes"]].tolist()
    return {spans.names[name]: size_bytes for name, size_bytes in sized}
