"""Which runtime synchronises gradients: by servers, or one without, with buckets of its own.

A recorded job tells of the transport that it used. Runtimes with another one are offered if the
recorded command ran under that, too (``other_transport.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from byteprophet import schedulers
from byteprophet.allreduce.strategies import strategy_for
from byteprophet.job import Job
from byteprophet.job.strategy import MESH, OURS, SERVERS, SHARDED
from byteprophet.optimize.keys import keeps_compressed
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.replay.ps import change
from byteprophet.replay.what_if import Changes


class Runtime:
    """Offers every runtime of ours as a start, and BytePS under each policy."""

    name = "runtime"
    effect = Effect.EXACT
    why = "Runtimes differ in what they hide behind computation, and in who makes the updates."

    def __init__(self) -> None:
        self._others: list[Job] = []

    def learn_other(self, job: Job) -> None:
        """Take the recorded command's job under another transport."""
        self._others.append(job)

    def starts(self, job: Job) -> Iterator[Move]:
        """The recorded one is offered, too: its buckets may have been given by hand."""
        if job.strategy.runtime in OURS:
            yield from _without_servers(job, "")
        for other in self._others:
            if other.transport == SERVERS:
                yield from _with_servers(other)
            elif other.transport == MESH:
                yield from _without_servers(other, " without servers" * bool(job.servers))
            elif other.transport == SHARDED:
                yield Move("the model sharded by FSDP2, as it was measured", other)
            else:
                yield Move("DistributedDataParallel's exchange, with buckets of 1 MiB", other)

    def moves(self, job: Job, hints: Hints) -> Iterable[Move]:
        """None: a runtime is chosen at the start."""
        return ()


def _without_servers(job: Job, where: str) -> Iterator[Move]:
    for runtime in OURS:
        yield Move(
            f"runtime {runtime}{where}, with the buckets that it plans",
            with_strategy(job, strategy_for(job, runtime)),
        )


def _with_servers(job: Job) -> Iterator[Move]:
    what = f"{job.servers} server(s), under policy"
    yield Move(f"{what} {job.push_policy.name}", job)
    for name in schedulers.names:
        if name not in (schedulers.STOCK, job.push_policy.name):
            changed = change(job, Changes(scheduler=name))
            if keeps_compressed(job, changed):
                yield Move(f"{what} {name}", changed)
