"""The types of a workload: tensors in forward order, with sizes and times.

A ``Workload`` that exists is valid: its constructor refuses anything else with a ``UserError``
that names the tensor (counted from 1, as a reader of the file counts) and the field.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from byteprophet.errors import UserError

FLOAT32_BYTES = 4

LARGEST = 2**50
"""Largest size, time and batch accepted (a pebibyte, thirteen days): sums stay inside int64."""


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor, float32, and the time of the layer that needs it.

    ``burst``: tensors with one burst number become ready together, at the time of the last of
    them; ``None`` is a burst of its own.
    """

    name: str
    size_bytes: int
    forward_ns: int
    backward_ns: int
    burst: int | None = None

    @property
    def elements(self) -> int:
        """Number of float32 elements."""
        return self.size_bytes // FLOAT32_BYTES


@dataclass(frozen=True)
class Workload:
    """A training job: ``tensors`` in forward order; backward needs them in the reverse order.

    ``batch_size`` is in samples per worker and iteration.
    """

    name: str
    batch_size: int
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        _check_integer("batch_size", self.batch_size, smallest=1)
        if not self.tensors:
            raise UserError("there must be at least one tensor")
        _check_tensors(self.tensors)
        _check_bursts(self.tensors)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors: what each worker pushes, and pulls, per iteration."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def forward_ns(self) -> int:
        """Time of a forward pass that waits for nothing."""
        return sum(tensor.forward_ns for tensor in self.tensors)

    @property
    def backward_ns(self) -> int:
        """Time of a backward pass."""
        return sum(tensor.backward_ns for tensor in self.tensors)

    def bursts(self) -> tuple[range, ...]:
        """Positions of the tensors of each burst, in forward order; together they are all."""
        starts = [0]
        for position in range(1, len(self.tensors)):
            burst = self.tensors[position].burst
            if burst is None or burst != self.tensors[position - 1].burst:
                starts.append(position)
        stops = [*starts[1:], len(self.tensors)]
        return tuple(range(start, stop) for start, stop in zip(starts, stops, strict=True))

    def ready_ns(self) -> tuple[int, ...]:
        """When each tensor's gradient is ready, in forward order, from the start of backward.

        Backward runs the tensors in reverse; a burst is ready when its last layer is done,
        which is the one that forward runs first.
        """
        ends_ns = self.backward_ends_ns()
        return tuple(ends_ns[burst.start] for burst in self.bursts() for _ in burst)

    def backward_ends_ns(self) -> tuple[int, ...]:
        """When backward has run each layer, in forward order, from the start of backward."""
        return tuple(accumulate(tensor.backward_ns for tensor in reversed(self.tensors)))[::-1]

    def scaled(self, compute_ns: int) -> Workload:
        """The same workload, rescaled so that forward plus backward take exactly ``compute_ns``.

        Every time is within 1 ns of its exact share.
        """
        _check_integer("compute_ns", compute_ns, smallest=0)
        times = [tensor.forward_ns for tensor in self.tensors]
        times += [tensor.backward_ns for tensor in self.tensors]
        if sum(times) == 0:
            raise UserError(f"workload '{self.name}' has no compute times to rescale")
        shares = distribute(compute_ns, times)
        forward, backward = shares[: len(self.tensors)], shares[len(self.tensors) :]
        return replace(
            self,
            tensors=tuple(
                replace(tensor, forward_ns=forward_ns, backward_ns=backward_ns)
                for tensor, forward_ns, backward_ns in zip(
                    self.tensors, forward, backward, strict=True
                )
            ),
        )

    def stepwise(self, tensors_per_burst: int) -> Workload:
        """The same workload, its gradients released in bursts of so many tensors.

        Bursts are counted from the end of the network, where backward begins; the one that forward
        needs first holds the rest. That is the pattern of frameworks that hand over gradients in
        groups. Bursts that the workload declares are replaced.
        """
        _check_integer("tensors per burst", tensors_per_burst, smallest=1)
        last = len(self.tensors) - 1
        return replace(
            self,
            tensors=tuple(
                replace(tensor, burst=(last - position) // tensors_per_burst)
                for position, tensor in enumerate(self.tensors)
            ),
        )


def distribute(total: int, weights: list[int]) -> list[int]:
    """Split ``total`` in proportion to ``weights`` (not all zero) into integers that sum to it.

    They are differences of rounded-down running totals, so that no error adds up.
    """
    whole = sum(weights)
    edges = [total * running // whole for running in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(edges)]


def _check_tensors(tensors: tuple[Tensor, ...]) -> None:
    positions: dict[str, int] = {}
    for position, tensor in enumerate(tensors, start=1):
        _check_name(f"tensor {position}: name", tensor.name)
        where = tensor_label(position, tensor.name)
        if tensor.name in positions:
            raise UserError(
                f"{where}: name is already that of tensor {positions[tensor.name]}, "
                "names must be unique"
            )
        positions[tensor.name] = position
        size = tensor.size_bytes
        if type(size) is not int or size <= 0 or size % FLOAT32_BYTES:
            raise UserError(
                f"{where}: size_bytes must be a positive multiple of {FLOAT32_BYTES}, got {size!r}"
            )
        _check_integer(f"{where}: size_bytes", size, smallest=FLOAT32_BYTES)
        _check_integer(f"{where}: forward_ns", tensor.forward_ns, smallest=0)
        _check_integer(f"{where}: backward_ns", tensor.backward_ns, smallest=0)
        if tensor.burst is not None:
            _check_integer(f"{where}: burst", tensor.burst, smallest=0)


def _check_bursts(tensors: tuple[Tensor, ...]) -> None:
    closed: set[int] = set()
    previous: int | None = None
    for position, tensor in enumerate(tensors, start=1):
        if tensor.burst is not None and tensor.burst in closed:
            raise UserError(
                f"{tensor_label(position, tensor.name)}: burst {tensor.burst} is interrupted: "
                "the tensors of a burst must be next to each other"
            )
        if previous is not None and previous != tensor.burst:
            closed.add(previous)
        previous = tensor.burst


def _check_name(what: str, value: object) -> None:
    if type(value) is not str or not value.strip() or not value.isprintable():
        raise UserError(f"{what} must be printable text that is not empty, got {value!r}")


def _check_integer(what: str, value: object, *, smallest: int) -> None:
    if type(value) is not int or not smallest <= value <= LARGEST:
        raise UserError(f"{what} must be an integer from {smallest} to 2^50, got {value!r}")


def tensor_label(position: int, name: str) -> str:
    """How messages call the tensor at ``position`` (from 1)."""
    return f"tensor {position} ('{name}')"
