"""What the planning of all-reduce knows of a job: its parameters' sizes and times, and its link.

Every rank sends and receives at once over a link of its own, and all ranks are alike: one rank's
link, busy in both directions together, stands for the job. Time runs from the start of backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from byteprophet.profile.model import Profile
from byteprophet.workload.model import Workload

_BIT_NS_PER_BYTE = 8 * 10**9


@dataclass(frozen=True)
class Link:
    """Of each of ``ranks`` ranks, per direction; ``bandwidth_bps`` is of payload.

    ``message_cost_ns`` (alpha): what each half of a group costs beyond its bytes.
    """

    ranks: int
    bandwidth_bps: int
    message_cost_ns: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.bandwidth_bps < 1 or self.message_cost_ns < 0:
            raise ValueError(f"{self}: ranks and bandwidth must be positive, cost not negative")

    def half_ns(self, size_bytes: int) -> int:
        """For the reduction, or the gathering, of a group of so many bytes: rounded up.

        A rank keeps one share in ``ranks`` and exchanges the others; alone it sends nothing.
        """
        if self.ranks == 1:
            return 0
        moved = (self.ranks - 1) * size_bytes * _BIT_NS_PER_BYTE
        return self.message_cost_ns - (-moved // (self.ranks * self.bandwidth_bps))


@dataclass(frozen=True)
class Parameter:
    """``ready_ns``: when backward has its gradient; None where backward does not come by it.

    ``forward_ns``: the time that forward takes from where it needs this parameter to where it
    needs the next.
    """

    name: str
    size_bytes: int
    ready_ns: int | None
    forward_ns: int


@dataclass(frozen=True)
class Timing:
    """One iteration without communication: ``parameters`` in forward order, at least one.

    ``backward_ns``: until ``step()`` is called. Forward starts then; what has no gradient of its
    own is taken to be ready then, too, because only then that is known.
    """

    parameters: tuple[Parameter, ...]
    backward_ns: int
    link: Link

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
        """Of a job that does what ``workload`` says."""
        parameters = tuple(
            Parameter(tensor.name, tensor.size_bytes, ready_ns, tensor.forward_ns)
            for tensor, ready_ns in zip(workload.tensors, workload.ready_ns(), strict=True)
        )
        return cls(parameters, workload.backward_ns, link)

    @classmethod
    def of_profile(cls, profile: Profile, link: Link) -> Timing:
        """Of a job as it was measured; the last gradient ends backward.

        Where the profile has not seen forward, backward begins with the first gradient.
        """
        last_ns = max(tensor.ready_ns for tensor in profile.tensors)
        lead_ns = max(0, profile.backward_ns - last_ns)
        parameters = tuple(
            Parameter(each.name, each.size_bytes, lead_ns + each.ready_ns, each.forward_ns)
            for each in profile.tensors
        )
        return cls(parameters, lead_ns + last_ns, link)

    @property
    def size_bytes(self) -> int:
        """Of all parameters."""
        return sum(parameter.size_bytes for parameter in self.parameters)

    @property
    def step_ns(self) -> int:
        """When ``step()`` is called."""
        return self.backward_ns

    @property
    def forward_ns(self) -> int:
        """Of a forward pass that waits for nothing."""
        return self.tails_ns[0]

    @property
    def compute_ns(self) -> int:
        """Backward and forward: an iteration that waits for nothing."""
        return self.backward_ns + self.forward_ns

    @cached_property
    def ready_ns(self) -> tuple[int, ...]:
        """Per parameter, with the end of backward for those that it does not come by."""
        return tuple(
            self.backward_ns if parameter.ready_ns is None else parameter.ready_ns
            for parameter in self.parameters
        )

    @cached_property
    def tails_ns(self) -> tuple[int, ...]:
        """Per parameter: the forward time from where it is needed to the end."""
        return tuple(accumulate(each.forward_ns for each in reversed(self.parameters)))[::-1]

    @cached_property
    def by_readiness(self) -> tuple[int, ...]:
        """Places in ``parameters`` in the order in which backward makes them ready.

        What is ready at one time comes in the reverse of forward's order, as in backward; what
        backward does not come by comes last.
        """

        def key(place: int) -> tuple[bool, int, int]:
            return self.parameters[place].ready_ns is None, self.ready_ns[place], -place

        return tuple(sorted(range(len(self.parameters)), key=key))
