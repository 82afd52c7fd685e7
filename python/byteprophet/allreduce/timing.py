"""The input of all-reduce planning: sizes and times of a job's parameters, and its link.

Every rank sends and receives at the same time over its own link. If all ranks are equal, the link
of one rank, which is busy in both directions at once, represents the job. If links differ, or ranks
own unequal shards, the two halves of an all-reduce need different directions of different links.
Time 0 is the start of backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

from byteprophet.job.owners import Owners
from byteprophet.workload.model import Workload

_BIT_NS_PER_BYTE = 8 * 10**9


@dataclass(frozen=True)
class Link:
    """The links of ``ranks`` ranks.

    ``bandwidth_bps`` is the payload bandwidth per direction; if links differ, ``rates_bps`` has the
    one of each rank, and ``bandwidth_bps`` is the smallest. ``message_cost_ns`` (alpha) is what
    each reduce-scatter or all-gather costs beyond its bytes. ``owners``: what each rank owns, as
    weights; none: equally much.
    """

    ranks: int
    bandwidth_bps: int
    message_cost_ns: int = 0
    rates_bps: tuple[int, ...] = ()
    owners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.bandwidth_bps < 1 or self.message_cost_ns < 0:
            raise ValueError(f"{self}: ranks and bandwidth must be positive, cost not negative")
        if self.rates_bps and len(self.rates_bps) != self.ranks:
            raise ValueError(f"{self}: there must be one rate for each rank")
        if self.rates_bps and min(self.rates_bps) != self.bandwidth_bps:
            raise ValueError(f"{self}: the bandwidth must be the smallest rate")

    @classmethod
    def of_ranks(
        cls, rates_bps: Sequence[int], message_cost_ns: int = 0, owners: tuple[int, ...] = ()
    ) -> Link:
        """The links of ranks with these rates."""
        rates = tuple(rates_bps)
        return cls(len(rates), min(rates), message_cost_ns, rates, owners)

    @cached_property
    def _owners(self) -> Owners:
        return Owners.of(self.owners, self.ranks)

    @cached_property
    def directions(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """The time of a byte of a reduce-scatter, and of an all-gather, in ns, per direction.

        In a reduce-scatter, a rank sends what others own, and receives its own shard from each of
        them; in an all-gather, it is the other way round. A single rank sends nothing. Left out are
        directions of which another one needs as long or longer in both halves.
        """
        owners = self._owners
        rates = self.rates_bps or (self.bandwidth_bps,) * self.ranks
        found = set()
        for share, rate_bps in zip(owners.shares, rates, strict=True):
            byte_ns = Fraction(_BIT_NS_PER_BYTE, rate_bps)
            of_others, of_own = (1 - share) * byte_ns, (self.ranks - 1) * share * byte_ns
            found |= {(of_others, of_own), (of_own, of_others)}
        longest = (each for each in found if not any(_covers(other, each) for other in found))
        return tuple(sorted(longest, reverse=True))

    def chunk_bytes(self, size_bytes: int) -> list[int]:
        """The sizes of the chunks of an all-reduce of so many bytes (``job/owners.py``)."""
        if self._owners.are_equal:
            return [size_bytes]
        chunks = self._owners.chunks(size_bytes, size_bytes)
        return [chunk.stop - chunk.start for chunk in chunks]

    def reduce_ns(self, size_bytes: int) -> int:
        """The time in ns of a reduce-scatter of ``size_bytes`` alone, rounded up."""
        return max(reduce_ns for reduce_ns, _ in self.halves_ns(size_bytes))

    def gather_ns(self, size_bytes: int) -> int:
        """The time in ns of an all-gather of ``size_bytes`` alone, rounded up."""
        return max(gather_ns for _, gather_ns in self.halves_ns(size_bytes))

    def halves_ns(self, size_bytes: int) -> tuple[tuple[int, int], ...]:
        """For each of ``directions``, how long both halves of ``size_bytes`` need it, in ns."""
        known = self._halves_ns.get(size_bytes)
        if known is None:
            known = self._halves_ns[size_bytes] = tuple(
                (self._half_ns(size_bytes, reduce), self._half_ns(size_bytes, gather))
                for reduce, gather in self.directions
            )
        return known

    @cached_property
    def _halves_ns(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By size: searches ask for the same buckets thousands of times."""
        return {}

    def _half_ns(self, size_bytes: int, byte_ns: Fraction) -> int:
        if not byte_ns:
            return 0
        return self.message_cost_ns - (-size_bytes * byte_ns.numerator // byte_ns.denominator)


def _covers(one: tuple[Fraction, Fraction], other: tuple[Fraction, Fraction]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@dataclass(frozen=True)
class Parameter:
    """A parameter and its times.

    ``ready_ns`` is the time at which its gradient is ready, or None if backward computes none.
    ``forward_ns`` is the forward time from where this parameter is needed to where the next one is
    needed.
    """

    name: str
    size_bytes: int
    ready_ns: int | None
    forward_ns: int


@dataclass(frozen=True)
class Timing:
    """One iteration without communication. ``parameters`` are in forward order, at least one.

    ``backward_ns`` is the time until ``step()`` is called, when the next forward starts. A
    parameter without a gradient counts as ready at that time, because only then is it known that
    there is none. ``lead_ns``: what forward computes before it needs the first parameter.
    """

    parameters: tuple[Parameter, ...]
    backward_ns: int
    link: Link
    lead_ns: int = 0

    def __post_init__(self) -> None:
        if not self.parameters:
            raise ValueError("there must be at least one parameter")
        for each in self.parameters:
            if each.size_bytes < 1 or each.forward_ns < 0:
                raise ValueError(f"{each}: size must be positive, forward time not negative")
            if each.ready_ns is not None and not 0 <= each.ready_ns <= self.backward_ns:
                raise ValueError(f"{each}: not ready within backward, {self.backward_ns} ns")

    @classmethod
    def of_workload(cls, workload: Workload, link: Link) -> Timing:
        """The timing of a job with the times of ``workload``."""
        parameters = tuple(
            Parameter(tensor.name, tensor.size_bytes, ready_ns, tensor.forward_ns)
            for tensor, ready_ns in zip(workload.tensors, workload.ready_ns(), strict=True)
        )
        return cls(parameters, workload.backward_ns, link)

    def replaced(self, parts: Sequence[Sequence[Parameter]]) -> Timing:
        """The same computation with ``parts`` in place of each parameter; none: it is left out.

        What forward computes from a parameter on counts for the last part up to there, or, if there
        is none yet, for ``lead_ns``. Forward times of ``parts`` do not count.
        """
        found: list[Parameter] = []
        lead_ns = self.lead_ns
        for each, own in zip(self.parameters, parts, strict=True):
            found += [replace(part, forward_ns=0) for part in own]
            if found:
                last_ns = found[-1].forward_ns + each.forward_ns
                found[-1] = replace(found[-1], forward_ns=last_ns)
            else:
                lead_ns += each.forward_ns
        return replace(self, parameters=tuple(found), lead_ns=lead_ns)

    @property
    def size_bytes(self) -> int:
        """The total size of all parameters."""
        return sum(self.sizes_bytes)

    @cached_property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The size of each parameter."""
        return tuple(parameter.size_bytes for parameter in self.parameters)

    @property
    def step_ns(self) -> int:
        """The time at which ``step()`` is called."""
        return self.backward_ns

    @property
    def forward_ns(self) -> int:
        """The time of a forward pass without waits."""
        return self.lead_ns + self.tails_ns[0]

    @property
    def compute_ns(self) -> int:
        """The time of backward and forward: an iteration without waits."""
        return self.backward_ns + self.forward_ns

    @cached_property
    def ready_ns(self) -> tuple[int, ...]:
        """The ready time of each parameter; the end of backward for those without a gradient."""
        return tuple(
            self.backward_ns if parameter.ready_ns is None else parameter.ready_ns
            for parameter in self.parameters
        )

    @cached_property
    def tails_ns(self) -> tuple[int, ...]:
        """For each parameter, the forward time from where it is needed to the end of forward."""
        return tuple(accumulate(each.forward_ns for each in reversed(self.parameters)))[::-1]

    @cached_property
    def by_readiness(self) -> tuple[int, ...]:
        """Indices into ``parameters``, in the order in which gradients become ready.

        Gradients that are ready at the same time come in reverse forward order, as in backward.
        Parameters without a gradient come last.
        """

        def key(place: int) -> tuple[bool, int, int]:
            return self.parameters[place].ready_ns is None, self.ready_ns[place], -place

        return tuple(sorted(range(len(self.parameters)), key=key))
