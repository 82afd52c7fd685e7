"""The C++ core: policies, the lower bound of an iteration, simulated jobs, graphs; the mesh.

Times are integer nanoseconds on the caller's clock. Nothing here is thread safe except
``iteration_bound_ns``, ``simulate``, ``replay`` and ``Mesh``. A request that the core refuses
raises ``ValueError`` with one line that says what and why; a number outside its C++ type raises
``TypeError``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

__version__: str
SOURCES: str
"""Digest of the files that this and BytePS with the plug-in were built from."""

# For annotations only: not there at run time.
# ("send", key, server, priority, size_bytes): it is in flight until on_acked(key)
# ("wait_until", ask_again_ns)
# ("idle",): ask again after the next on_ready or on_acked
Decision: TypeAlias = (
    tuple[Literal["send"], int, int, int, int]
    | tuple[Literal["wait_until"], int]
    | tuple[Literal["idle"]]
)

_Int64Array: TypeAlias = npt.NDArray[np.int64]

ANSWERS_BYTES: int
"""What a server has on its way to a worker before it waits (native/byteps/answers/flow.h)."""
ACKS_WAIT_BYTES: int
"""The least beside a partition in prophet's automatic window floor (prophet/policy/prophet.h)."""
MAX_MESSAGE_COST_NS: int
"""The largest message cost that the engine takes (prophet/engine/fabric.h)."""

def policy_names() -> list[str]: ...
def default_settings(name: str) -> dict[str, int]: ...
def parse_settings(text: str) -> dict[str, int]:
    """``"window_max_bytes=4194304,..."`` as BYTEPROPHET_SETTINGS carries it; names unchecked."""

@final
class Policy:
    """One worker's sending queue, as the plug-in uses it. See prophet/policy.h."""

    def __init__(self, name: str, settings: Mapping[str, int] = ...) -> None: ...
    def on_ready(self, key: int, server: int, priority: int, size_bytes: int, now_ns: int) -> None:
        """An item may be sent. Larger priorities are more urgent, negative in forward order."""

    def on_acked(self, key: int, now_ns: int) -> None:
        """The server has it. A key that is not in flight is ignored."""

    def on_iteration(self, now_ns: int) -> None:
        """Between the last item of an iteration and the first of the next. Optional."""

    def next(self, now_ns: int) -> Decision: ...
    def set_ready_times(self, times: Sequence[tuple[int, int, int, int]]) -> None:
        """A profile: (tensor, priority, ready_ns, spread_ns), times from the first ready item.

        A tensor is ``key >> 16``. Policies that predict nothing ignore it.
        """

    def reconfigure(self, overrides: Mapping[str, int]) -> None:
        """Change some settings, with items pending and in flight; ``ValueError`` changes none."""

    @property
    def preferred_partition_bytes(self) -> int | None:
        """The partition size that suits the link best, as far as it is known; None: no wish."""

    @property
    def settings(self) -> dict[str, int]: ...
    @property
    def pending(self) -> int:
        """Items that ``next`` has not returned yet."""

    @property
    def name(self) -> str: ...

def iteration_bound_ns(
    size_bytes: Sequence[int],
    ready_ns: Sequence[int],
    forward_ns: Sequence[int],
    *,
    backward_ns: int,
    bandwidth_bps: int | None,
    workers: int,
    servers: int,
    server_bandwidth_bps: int | None = None,
) -> int:
    """The shortest time one iteration can take under any schedule, rounded down.

    The sequences have one entry per tensor, in forward order; ``ready_ns`` is counted from the
    start of backward, ``forward_ns`` is the forward time that needs the tensor. ``bandwidth_bps``
    is the payload rate per direction of each worker's link (None: not a constraint). The formula
    is in prophet/bound.h.
    """

def times_of_halves(
    ready_ns: Sequence[int],
    reduce_ns: Sequence[int],
    gather_ns: Sequence[int],
    reduce_place: Sequence[int],
    gather_place: Sequence[int],
    after_step: Sequence[int],
    step_ns: int,
) -> tuple[list[int], list[int], list[int], list[int]]:
    """When reduce-scatters start and end on a link, and all-gathers, by strict priority.

    The sequences have one entry per bucket, and so have the results. See prophet/halves.h.
    """

def simulate(
    scheduler: str,
    settings: Mapping[str, int],
    *,
    forward_ns: _Int64Array,
    ready_ns: _Int64Array,
    first_partition: _Int64Array,
    size_bytes: _Int64Array,
    server: npt.NDArray[np.int32],
    backward_ns: int,
    iterations: int,
    worker_bandwidth_bps: _Int64Array,
    server_bandwidth_bps: _Int64Array,
    delay_ns: int = 0,
    message_cost_ns: int = 0,
    sum_bps: int = 0,
    sum_threads: int = 1,
    answer_by_priority: bool = False,
    stock_transport: bool = False,
    barrier: bool = False,
    known_profile: bool = False,
    record: bool = False,
) -> dict[str, Any]:
    """A job on virtual time, under policies as MakePolicy makes them. See prophet/engine/job.h.

    Rates are of payload; 0: not limited. ``known_profile``: policies are told when tensors become
    ready. The GIL is free meanwhile, and the arrays must stay as they are. Returns ``start_ns``:
    int64 (workers, iterations + 1); ``backward_start_ns``: (workers, iterations); ``busy_ns``,
    ``bytes`` and ``messages`` of the links, up then down: (2, workers + servers); ``transfers``: of
    each worker uint8, 64 bytes per transfer; ``end_ns``, ``events``: int.
    """

def replay(
    graph: Mapping[str, Any],
    gates: Sequence[tuple[str, Mapping[str, int], Sequence[tuple[int, int, int, int]]]],
) -> dict[str, Any]:
    """A graph on virtual time. See prophet/graph/graph.h; byteprophet.replay.engine calls it.

    ``graph``: the arrays of a Graph and its devices as columns, each of its exact type.
    ``gates``: policy, settings and, where known, ready times as ``Policy.set_ready_times`` takes
    them. The GIL is free meanwhile, and the arrays must stay as they are. Returns the fields of
    Result. What is refused is a ``ValueError`` whose arguments are the line and the operation that
    it names, or -1.
    """

def critical_path(
    *,
    first_successor: _Int64Array,
    successor: npt.NDArray[np.int32],
    latency_ns: _Int64Array,
    ready_ns: _Int64Array,
    end_ns: _Int64Array,
    held_by: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Operations in order of time, of a graph and what ``replay`` said of it."""

def graph_closure(graph: Mapping[str, Any], wanted: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """``wanted`` and all operations that they need, ascending. Arguments, errors: ``replay``."""

@final
class Traffic:
    """What went one way: payload bytes, frames, and how long there was something to go.

    In ``carrying_ns``, a part of ``busy_ns``, the link carried ``carried_bytes``. A bandwidth can
    be estimated from differences of these. See native/exchange/meter.h.
    """

    @property
    def payload_bytes(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...
    @property
    def carried_bytes(self) -> int: ...
    @property
    def carrying_ns(self) -> int: ...

@final
class Mesh:
    """Sums and gathers between the ranks of a job. See native/exchange/mesh.h.

    Of each tensor's n elements, rank r owns those from n * B(r) // B(P) to n * B(r + 1) // B(P),
    where B(r) is the sum of the ``weights`` before r; without weights, they are equal. All ranks
    start an operation with the same weights. Tensors are pairs (address, elements) of dense memory
    of ``dtype``, one of ``dtypes()``; they stay alive, and are left alone, until their operation is
    over. An operation is a 64-bit number, the same on every rank for the same exchange, and used
    once. Of those that are ready, the one of smallest ``position`` is sent next. What does not fit
    raises ``ValueError``, as does anything started after ``close``.

    All calls release the GIL, and any thread may make them.
    """

    def __init__(
        self,
        rank: int,
        sockets: Sequence[int],
        frame_bytes: int = 262144,
        vanished_after_s: float = 15.0,
    ) -> None:
        """``sockets[r]``: descriptor of a stream socket connected to rank r; own place: -1.

        They belong to the mesh from now on, also if this raises. A rank whose host answers nothing
        for ``vanished_after_s`` counts as gone; 0: never.
        """

    @staticmethod
    def dtypes() -> list[str]:
        """Types of elements that can be exchanged, by torch's names."""

    def reduce(
        self,
        operation: int,
        tensors: Sequence[tuple[int, int]],
        dtype: str,
        average: bool,
        position: int,
        weights: Sequence[int] = (),
    ) -> None:
        """The own share becomes the sum of all ranks', in rank order, or that times 1/P.

        Other shares stay as they are. Types without fractions have no averages; of bools, the sum
        is whether any is true.
        """

    def gather(
        self,
        operation: int,
        tensors: Sequence[tuple[int, int]],
        dtype: str,
        position: int,
        weights: Sequence[int] = (),
    ) -> None:
        """Every other rank's share becomes what that rank has there."""

    def all_reduce(
        self,
        operation: int,
        gather: int,
        tensors: Sequence[tuple[int, int]],
        dtype: str,
        average: bool,
        positions: tuple[int, int],
        weights: Sequence[int] = (),
        tells_sum: bool = False,
    ) -> None:
        """``reduce``, and from each rank's sum on ``gather``, under numbers of their own.

        It is over, and missing, by the number ``gather``. With ``tells_sum``, ``completed`` gives
        ``operation`` as well, without an error, when the sum is here.
        """

    def completed(self, timeout_s: float) -> list[tuple[int, str | None]]:
        """Operations that are over, each once, in order of their ends; with an error, or None.

        Waits up to ``timeout_s`` for one, not once the mesh is closed. The memory of an operation
        that has failed is not touched any more, and holds anything.
        """

    def missing(self, operation: int) -> list[int]:
        """Ranks whose part of it has not come; none if it is not in flight."""

    def traffic(self) -> tuple[Traffic, Traffic]:
        """Sent and received. What is received is busy while its sender has something to send."""

    def close(self, timeout_s: float) -> None:
        """Sends what is queued, for so long at most, and leaves; idempotent.

        The others are told that this rank leaves; what is not over has failed.
        """

    def close_in_child(self) -> None:
        """In a child made by fork: close its copies of the sockets; elsewhere nothing.

        While a child has them, the others do not see this process end. Allowed there alone.
        """
