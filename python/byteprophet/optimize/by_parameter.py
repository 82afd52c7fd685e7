"""A recorded job parameter by parameter, also where small gradients shared buffers.

With servers, small gradients share buffers, and a job's model has a buffer as one tensor. But what
a region changes is when each gradient is ready. Workers record that for every parameter, so regions
change the times of parameters, and buffers follow: a buffer is ready when its last member is. What
changes is added to the recorded times of the tensors, so a job without regions keeps those exactly.

Buffers are runs of the order in which the forward pass needs parameters. Inside a compiled region,
no calls of modules are seen, and its parameters are taken in the order in which they are
registered. If that order is another one than the recorded one, gradients would share other buffers,
with other keys, than those that were recorded. Such regions are refused (``keeps_buffers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byteprophet.errors import UserError
from byteprophet.job import Job, Model, Times
from byteprophet.job.region_costs import RegionCosts
from byteprophet.job.strategy import Region, Strategy
from byteprophet.job.times import Int64Array
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.processors import Use
from byteprophet.measure.run import Run
from byteprophet.optimize.regions import times_with
from byteprophet.runtime_settings import FUSION_BYTES


@dataclass(frozen=True, eq=False)
class ByParameter:
    """The parameters of a recorded ``job``, in forward order.

    Attributes:
        job: the job as it was recorded; buffers are tensors of its model.
        model: all parameters.
        times: theirs, of the same iterations as the job's.
        starts: where each tensor of the job begins in ``model``.
    """

    job: Job
    model: Model
    times: Times
    starts: tuple[int, ...]

    @classmethod
    def measured(cls, run: Run, job: Job) -> ByParameter:
        """The parameters of ``job``, which ``run`` recorded.

        Raises ``UserError`` if it is not known when the gradient of each one was ready.
        """
        if job.policy is None or not run.fused.parameters:
            return cls.alone(job)
        if run.config["local_ranks"] > 1:
            raise UserError(
                f"{run.directory}: gradients of several local ranks shared buffers, so it is not "
                f"known when each one was ready: record the job with {FUSION_BYTES}=0"
            )
        # As of ``job``: also the iterations before gradients shared the last buffers.
        model, times = measure_parameters(run, job, 1, Use.of(job.cluster))
        members = [run.fused.of(name) for name in job.model.names]
        return cls.sharing(job, members, model, times)

    @classmethod
    def alone(cls, job: Job) -> ByParameter:
        """A job whose gradients share no buffers."""
        return cls(job, job.model, job.times, tuple(range(len(job.model))))

    @classmethod
    def sharing(
        cls, job: Job, members: Sequence[Sequence[str]], model: Model, times: Times
    ) -> ByParameter:
        """A job whose tensor n has the parameters ``members[n]``; all of them are in ``model``."""
        starts = np.cumsum([0, *(len(each) for each in members)])[:-1]
        return cls(job, model, times, tuple(starts.tolist()))

    @property
    def shares(self) -> bool:
        """Whether some gradients share a buffer."""
        return len(self.starts) < len(self.model)

    @property
    def tensor_of(self) -> Int64Array:
        """The tensor in which the gradient of each parameter travels."""
        counts = np.diff([*self.starts, len(self.model)])
        found: Int64Array = np.repeat(np.arange(len(self.starts)), counts)
        return found

    @property
    def buffers_bytes(self) -> int:
        """The size of all buffers that gradients share."""
        counts = np.diff([*self.starts, len(self.model)]).tolist()
        sizes = zip(self.job.model.sizes_bytes, counts, strict=True)
        return sum(size_bytes for size_bytes, count in sizes if count > 1)

    def keeps_buffers(self, regions: Iterable[Region], costs: RegionCosts) -> bool:
        """Whether gradients would share the same buffers if the model ran in ``regions``."""
        if not self.shares:
            return True
        units = {unit for chain in costs.chains for unit in chain}
        region_of: dict[str, Sequence[str]] = {}
        for region in regions:
            if region.compiled:
                names = [*self._places(region, costs)]
                region_of.update(dict.fromkeys(names, names))
            elif len(region.modules) > 1 and region.modules not in units:
                return False  # what its modules own themselves is needed when the first one runs
        order: dict[str, None] = {}
        for name in self.model.names:
            order.update(dict.fromkeys(region_of.get(name, (name,))))
        return tuple(order) == self.model.names

    def times_with(self, strategy: Strategy, costs: RegionCosts) -> Times:
        """The times of the job's tensors, as the regions of ``strategy`` change them."""
        after = times_with(self.times, self.model, strategy, costs)
        if not self.shares:
            return after
        layers = self._layers()
        at_once = layers.copy()
        for region in strategy.regions:
            places = self._places(region, costs)
            if region.compiled and places:  # it needs the last of its parameters, too
                last = max(places.values())
                at_once[last] = self.tensor_of[last]
        was, recorded = self.times, self.job.times
        forward_ns = self._summed(after.forward_ns, at_once) - self._summed(was.forward_ns, layers)
        ready_ns = self._latest(after.ready_ns) - self._latest(was.ready_ns)
        return replace(
            recorded,
            forward_ns=np.maximum(0, recorded.forward_ns + forward_ns),
            ready_ns=np.maximum(0, recorded.ready_ns + ready_ns),
            backward_ns=np.maximum(0, recorded.backward_ns + after.backward_ns - was.backward_ns),
        )

    def _places(self, region: Region, costs: RegionCosts) -> dict[str, int]:
        """The places of a region's parameters, in the order in which they are registered."""
        names = costs.regions[region.modules].parameters
        return {name: self.model.places[name] for name in names if name in self.model.places}

    def _layers(self) -> Int64Array:
        """The tensor to which a replay counts the forward time of each parameter's layer.

        It is the first one that the layer needs (``measure/servers.py``).
        """
        first: dict[str, int] = {}
        tensors = self.tensor_of.tolist()
        return np.array(
            [
                first.setdefault(name.rpartition(".")[0], tensor)
                for name, tensor in zip(self.model.names, tensors, strict=True)
            ],
            np.int64,
        )

    def _summed(self, times_ns: Int64Array, tensors: Int64Array) -> Int64Array:
        chosen = tensors[:, None] == np.arange(len(self.starts))
        summed: Int64Array = times_ns @ chosen.astype(np.int64)
        return summed

    def _latest(self, times_ns: Int64Array) -> Int64Array:
        latest: Int64Array = np.maximum.reduceat(times_ns, self.starts, axis=2)
        return latest
