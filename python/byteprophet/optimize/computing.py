"""What a pass that changes how the model computes has learned, and what it makes of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from byteprophet.job import Job, Times
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import Region, Strategy
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.regions import other_units, times_with


class Computing:
    """Base of such a pass. ``learn`` must be called before anything else."""

    words: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.costs = RegionCosts((), {})
        self._plain: dict[str, ByParameter] = {}  # by transport
        self._medians: dict[tuple[str, Strategy], Times] = {}

    def learn(self, job: Job, costs: RegionCosts, parameters: ByParameter | None = None) -> None:
        """Take a recorded ``job``, and what its regions cost.

        ``parameters``: those of the job, if some of their gradients shared buffers.
        """
        self.costs = costs
        self._medians.clear()
        if not job.strategy.changes_model:
            self._plain[job.transport] = parameters or ByParameter.alone(job)

    def plain(self, job: Job) -> ByParameter | None:
        """The job that was recorded under the transport of ``job``; None: there is none."""
        return self._plain.get(job.transport)

    def can_make(self, job: Job, strategy: Strategy) -> bool:
        """Whether it is known how the model of ``job`` would compute under ``strategy``."""
        needed = [*strategy.regions]
        if strategy.autocast:
            # The whole model is cast, so it must be known to run so, unit by unit.
            if not self.costs.has_all_units:
                return False
            needed += [Region(self.costs.chains[0][0]), *other_units(strategy.regions, self.costs)]
        for region in needed:
            cost = self.costs.regions.get(region.modules)
            if cost is None or region.mode(strategy.autocast) not in cost.modes:
                return False
        plain = self.plain(job)
        if plain is None or plain.times.passes > 1:  # regions of several passes look alike
            return False
        return plain.keeps_buffers(strategy.regions, self.costs)

    def changed(self, job: Job, strategy: Strategy) -> Job | None:
        """``job`` under ``strategy``; None if nothing is known of how the model would compute."""
        return self.made(job, strategy) if self.can_make(job, strategy) else None

    def made(self, job: Job, strategy: Strategy) -> Job:
        """``job`` under ``strategy``, which this ``can_make``."""
        times = self._plain[job.transport].times_with(strategy, self.costs)
        # The runtime decides who updates what.
        times = replace(times, update_ns=job.times.update_ns)
        return replace(job, times=times, strategy=strategy)

    def with_regions(self, job: Job, regions: Iterable[Region]) -> Job | None:
        """``job`` with these regions; None if what they cost is not known."""
        return self.changed(job, in_regions(job.strategy, regions))

    def medians(self, job: Job, strategy: Strategy) -> Times:
        """Medians of the parameters' times under ``strategy``, which this ``can_make``.

        They are those of the worker with the longest backward pass, as one iteration.
        """
        key = job.transport, Strategy(regions=strategy.regions, autocast=strategy.autocast)
        if key not in self._medians:
            plain = self._plain[key[0]]
            worker = int(np.argmax(np.median(plain.times.backward_ns, axis=1)))
            forward_ns, ready_ns, backward_ns, update_ns = plain.times.medians(worker)
            times = Times(
                forward_ns[None, None],
                ready_ns[None, None],
                np.array([[backward_ns]]),
                update_ns[None, None],
                between_ns=plain.times.between_median(worker),
                waits_for_all=plain.times.waits_for_all,
            )
            self._medians[key] = times_with(times, plain.model, strategy, self.costs)
        return self._medians[key]


def in_regions(strategy: Strategy, regions: Iterable[Region]) -> Strategy:
    """``strategy`` with these regions in place of its own, in a fixed order."""
    return replace(strategy, regions=tuple(sorted(regions, key=lambda region: region.modules)))
