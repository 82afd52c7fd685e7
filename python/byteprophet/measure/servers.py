"""Measures a recorded parameter-server job: its workers' computation, and its network.

The measurement covers the last consecutive iterations that every worker recorded completely. It
takes these times from the events of the run (``timeline/tables.py``):

    forward     from the end of the previous layer to the end of this one, without waits; the
                script's own work between two layers counts as part of the second one
    ready       from the end of the forward pass to when a gradient's first partition was offered
    backward    from the end of the forward pass to the next iteration, without waits
    update      the total length of the update's spans; under "stock", the time after the wait for
                all gradients, divided among the tensors in proportion to their sizes

A layer counts as part of the tensor with the same name, or else of the first tensor in its module.
If small gradients shared a buffer, the buffer is one tensor. It is needed when its first parameter
is, and the forward times and updates of its parameters are added up.
Workers under "stock" record no transfers, so ``stock.py`` reconstructs them. ``network.py``
measures the network. If partition sizes or settings changed during the run, the job has the last
ones; a recording that ends before these is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job import Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.fused_file import ALONE, Fused
from byteprophet.job.times import Int64Array, iteration_times_ns
from byteprophet.measure.computation import add_forward, between_passes, first_gradient_ns
from byteprophet.measure.network import measure_network
from byteprophet.measure.parameters import gradient_sizes_bytes
from byteprophet.measure.processors import Clock, Clocks, Use, served_arrivals
from byteprophet.measure.run import Run
from byteprophet.measure.settings import Told, read_told
from byteprophet.measure.tensors import (
    Tensors,
    by_iteration,
    by_rank,
    check_extent,
    check_servers,
    has_steps_alone,
    iterations_since,
    measure_tensors,
    place_since,
)
from byteprophet.measure.waits import Waits, training_waits, waits_for_all
from byteprophet.schedulers import PARTITION, STOCK, resolve
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import SERVED_TABLE, SPANS, TRANSFERS, Kind, Rows
from byteprophet.workload.run_config import link_limits_bps, server_limits_bps


@dataclass(frozen=True)
class Measured:
    """A measured job. ``start_ns``: starts of iterations, shape (workers, iterations + 1).

    If the job accumulates gradients, an iteration is as many of the script's steps.

    ``settled_from``: 0-based index of the first iteration that ran with the settings of ``job``.
    """

    job: Job
    start_ns: Int64Array
    settled_from: int = 0

    @property
    def iteration_ns(self) -> Int64Array:
        """The time of a step in each iteration, shape (iterations,)."""
        times_ns = iteration_times_ns(self.start_ns[:, :-1], self.start_ns[:, 1:])
        return times_ns // self.job.strategy.accumulation


def measure_run(run: Run, use: Use | None = None) -> Measured:
    """Measure the job of ``run``; UserError if a needed recording is missing.

    ``use``: of the cores that the ranks of a job without servers share; the job's times are then
    processor time (``processors.py``). None: its times are those of the wall clock.
    """
    config = run.config
    try:
        if config["steps"]:
            raise UserError("its links changed during the run (--step), and a replay has one rate")
        events = run.aligned.events
        check_servers(events, config["servers"])
        if config["servers"] == 0:
            # A job is of one kind: what measures the others is not imported.
            from byteprophet.job.strategy_file import read_strategy
            from byteprophet.measure.all_reduce import measure_all_reduce

            used = read_strategy(run.directory)
            measured = Measured(*measure_all_reduce(events, config, used, use))
        else:
            from byteprophet.job.strategy import MIXED
            from byteprophet.job.strategy_file import read_given

            given = read_given(run.directory)
            if given is not None and given.strategy.staleness:
                raise UserError("averages from servers were delayed: such a job cannot be replayed")
            told = read_told(run.directory)
            if given is not None and given.strategy.runtime == MIXED:
                from byteprophet.measure.two_transports import measure_two_transports

                found = measure_two_transports(events, config, given, told, run.fused)
                measured = Measured(*found)
            else:
                strategy = Strategy() if given is None else given.strategy
                measured = measure(events, config, told, run.fused, strategy, use)
        _check_times(measured)
    except UserError as error:
        raise run.refusal(error) from None
    run.warn()
    return measured


def _check_times(measured: Measured) -> None:
    """UserError if an iteration takes no time, or ends before it begins, as in a damaged file."""
    least_ns = int(measured.iteration_ns.min())
    if least_ns <= 0:
        raise UserError(f"by its recorded times, an iteration took {least_ns} ns: record it again")


def measure(
    recorded: Sequence[Events],
    config: Mapping[str, Any],
    told: Told | None = None,
    fused: Fused = ALONE,
    given: Strategy = Strategy(),  # noqa: B008 (it is frozen)
    use: Use | None = None,
) -> Measured:
    """Measure the job that recorded the events ``recorded``.

    ``config`` is the content of the run's ``config.toml``. ``told`` are settings and ready times
    that the policy received during the run. ``fused`` says which gradients shared buffers, and
    ``given`` how the optimizer changed them. ``use``: of the cores that roles share; None: they
    share none, or it is not known. UserError if a needed recording is missing.
    """
    told = told or Told()
    local_ranks = config.get("local_ranks", 1)
    # Only a worker's last local rank talks to servers. It sends the sums of all local ranks.
    ranks = range(local_ranks - 1, config["workers"] * local_ranks, local_ranks)
    if local_ranks > 1:
        if config["scheduler"] == STOCK:
            raise UserError(
                "its workers have several local ranks, whose sums stock does not record"
            )
        # Servers number the processes that talk to them; these numbers are not ranks.
        recorded = [events for events in recorded if events.table is not SERVED_TABLE]
    spans = by_rank(recorded, SPANS, ranks)
    if all(has_steps_alone(events.rows) for events in spans):
        raise UserError("a job of several optimizers cannot be replayed")
    numbers = iterations_since(spans, 1)
    if config["scheduler"] == STOCK:
        from byteprophet.measure.stock import stock_transfers

        recorded = [*recorded, *stock_transfers(recorded, spans)]
    transfers = by_rank(recorded, TRANSFERS, ranks)
    tensors = measure_tensors(
        transfers[0], fused, config["servers"], gradient_sizes_bytes(spans[0])
    )
    check_extent(len(numbers), len(tensors.names))
    clocks = None
    if use is not None:
        clocks = Clocks(spans, [served_arrivals(each.rows) for each in transfers], use)
    workers = [
        _Worker(
            own,
            sent.rows,
            tensors,
            numbers,
            fused.since,
            None if clocks is None else (clocks.training[worker], clocks.updating[worker]),
            barrier=config["scheduler"] == STOCK,
        )
        for worker, (own, sent) in enumerate(zip(spans, transfers, strict=True))
    ]
    times = Times(
        forward_ns=np.stack([worker.forward_ns for worker in workers]),
        ready_ns=np.stack([worker.ready_ns for worker in workers]),
        backward_ns=np.stack([worker.backward_ns for worker in workers]),
        update_ns=np.stack([worker.update_ns for worker in workers]),
        passes=given.accumulation,
        between_ns=between_passes(np.stack([worker.between_ns for worker in workers])),
        waits_for_all=all(waits_for_all(own, numbers) for own in spans),
    )
    own_bytes, reduce_fixed = _own_sizes(tensors, spans[0], given.reduce_dtype)
    partition_bytes = tensors.partition_bytes or config["partition_bytes"]
    settings = {**config["settings"], **told.settings}
    if told.settings:
        try:
            resolve(config["scheduler"], settings)
        except UserError as error:
            raise UserError(f"settings that changed during the run: {error}") from None
    limits_bps = link_limits_bps({**config, "local_ranks": 1})  # only one rank uses the link
    ready_times = tuple(
        (place, -1 - place, *told.ready[name])
        for place, name in enumerate(tensors.names)
        if name in told.ready
    )
    cluster = measure_network(
        recorded,
        config["servers"],
        limits_bps,
        server_limits_bps(config),
        on_cores=use is not None,
    )
    if use is not None:
        cluster = use.on(cluster, limits_bps)
    job = Job(
        Model(tuple(map(Parameter, tensors.names, own_bytes))),
        times,
        cluster,
        Strategy(
            partition_bytes=partition_bytes,
            numbers=tensors.numbers,
            keys=tensors.keys,
            reduce_dtype=given.reduce_dtype,
            reduce_fixed=reduce_fixed,
            accumulation=given.accumulation,
            compressed_by_script=tensors.compressed,
        ),
        Policy(config["scheduler"], {**settings, PARTITION: partition_bytes}, ready_times),
    )
    starts_ns = np.stack([worker.start_ns for worker in workers])
    settled = place_since(max(tensors.settled_from, told.settled_from), numbers)
    return Measured(job, starts_ns, settled)


def _own_sizes(tensors: Tensors, spans: Events, reduce_dtype: str) -> tuple[tuple[int, ...], str]:
    """The sizes of gradients in their own type, and why they cannot be given another type.

    The recorded transfers have the sizes in which gradients travelled, and the spans those of
    parameters. A script may compress gradients itself, which only their difference shows.
    """
    sent_bytes = tensors.size_bytes
    if reduce_dtype:
        return tuple(2 * size_bytes for size_bytes in sent_bytes), ""
    known = gradient_sizes_bytes(spans)
    for name, held, size_bytes in zip(tensors.names, tensors.parameters, sent_bytes, strict=True):
        if not known.keys() >= set(held):
            return sent_bytes, f"the size of {name!r} was not recorded"
        own_bytes = sum(known[each] for each in held)
        if own_bytes != size_bytes:
            return sent_bytes, (
                f"the gradient of {name!r} has {own_bytes} bytes and travels in {size_bytes}"
            )
    return sent_bytes, ""


class _Worker:
    """One worker's times. Shapes: I iterations, L tensors; ``start_ns`` (I + 1,).

    ``numbers``: of the iterations, consecutive. ``since``: the first one in which ``tensors`` were
    sent.
    """

    def __init__(
        self,
        spans: Events,
        transfers: Rows,
        tensors: Tensors,
        numbers: Sequence[int],
        since: int,
        clocks: tuple[Clock, Clock] | None,
        *,
        barrier: bool,
    ) -> None:
        shape = (len(numbers), len(tensors.names))
        self._barrier = barrier
        self._share = np.array(tensors.size_bytes) / sum(tensors.size_bytes)
        self.forward_ns = np.zeros(shape, np.int64)
        self.ready_ns = np.zeros(shape, np.int64)
        self.update_ns = np.zeros(shape, np.int64)
        self.backward_ns = np.zeros(len(numbers), np.int64)
        self.between_ns = np.zeros(len(numbers), np.int64)
        self.start_ns = np.zeros(len(numbers) + 1, np.int64)
        places = _Places(tensors.parameters)
        self._tensor_of = {index: places.of(name) for index, name in spans.names.items()}
        rows = np.sort(spans.rows, order="end_ns")
        waits = training_waits(rows)
        _, self._wait_ends_ns = waits
        self._training: Waits | Clock = Waits(waits)
        self._updating: Clock | None = None
        if clocks is not None:
            self._training, self._updating = clocks
        own = by_iteration(rows)
        sent = by_iteration(transfers[transfers["priority"] < 0])
        for iteration, number in enumerate(numbers):
            # Before ``since``, other tensors were sent.
            is_known = number >= since and number in sent
            self._take(iteration, own[number], sent[number] if is_known else transfers[:0])
        known = since - numbers[0]
        if 0 < known < len(numbers):  # a policy that learns should not learn what never comes again
            first = slice(known)
            self.ready_ns[first] = np.minimum(self.ready_ns[known], self.backward_ns[first, None])

    def _take(self, iteration: int, spans: Rows, sent: Rows) -> None:
        (whole,) = spans[spans["kind"] == Kind.ITERATION][["begin_ns", "end_ns"]].tolist()
        self.start_ns[iteration : iteration + 2] = whole
        since_ns, end_ns = whole
        forward = spans[spans["kind"] == Kind.FORWARD]
        times_ns = [since_ns, *forward["end_ns"].tolist()]
        forward_ns = self._training.worked_ns(times_ns)
        places = [self._tensor_of[name] for name in forward["name"].tolist()]
        is_later = forward["end_ns"] > first_gradient_ns(spans)
        self.between_ns[iteration] = add_forward(
            self.forward_ns[iteration], places, forward_ns.tolist(), is_later
        )
        since_ns = times_ns[-1]
        if self._barrier:
            ends_ns = self._wait_ends_ns
            ends_ns = ends_ns[(ends_ns > since_ns) & (ends_ns <= end_ns)]
            released_ns = int(ends_ns.max()) if len(ends_ns) else end_ns
            self.update_ns[iteration] = (end_ns - released_ns) * self._share
            end_ns = released_ns
        (self.backward_ns[iteration],) = self._training.worked_ns([since_ns, end_ns])
        # A gradient that was not sent in this iteration counts as ready when all of them are.
        ready_ns = np.full(self.ready_ns.shape[1], self.backward_ns[iteration])
        first = np.full(len(ready_ns), np.iinfo(np.int64).max)
        if len(sent) and -1 - int(sent["priority"].min()) >= len(first):
            raise UserError("its workers sent different tensors: such jobs cannot be replayed")
        np.minimum.at(first, -1 - sent["priority"], sent["ready_ns"])
        known = first < np.iinfo(np.int64).max
        ready_ns[known] = self._passed_ns(since_ns, first[known])
        self.ready_ns[iteration] = np.maximum(0, ready_ns)
        updates = spans[spans["kind"] == Kind.UPDATE]
        took_ns = updates["end_ns"] - updates["begin_ns"]
        if self._updating is not None:
            took_ns = self._updating.at(updates["end_ns"]) - self._updating.at(updates["begin_ns"])
        tensors = np.array([self._tensor_of[name] for name in updates["name"].tolist()], np.int64)
        np.add.at(self.update_ns[iteration], tensors, took_ns)

    def _passed_ns(self, since_ns: int, times_ns: Int64Array) -> Int64Array:
        """What the training thread computed from ``since_ns`` to each of ``times_ns``."""
        if isinstance(self._training, Waits):
            return times_ns - since_ns
        return self._training.at(times_ns) - self._training.at(since_ns)


class _Places:
    """Finds the tensor to which a span belongs. ``parameters``: those of each tensor."""

    def __init__(self, parameters: Sequence[Sequence[str]]) -> None:
        self._place = {name: place for place, names in enumerate(parameters) for name in names}

    def of(self, name: str) -> int:
        """Index of the tensor for the parameter or module ``name``; 0 if no tensor fits."""
        if name in self._place:
            return self._place[name]
        inside = (place for each, place in self._place.items() if each.startswith(name + "."))
        return next(inside, 0)
