"""The synchroniser of ranks that reduce among themselves, without servers.

A gradient waits until its group (``collective_groups.py``) is complete on this rank; then the
group's reduction starts, and its gather follows where the group is whole. Of shared groups
``spread`` gathers the parameters, again as a group. ``flush`` starts what still waits for members
that take no part in this iteration: all ranks flush at the same place of the script, with the same
members. What is no parameter's gradient (``agreement.py``) is reduced and gathered at once.

Operations go by numbers that all ranks give them alike: what for, whose, and how many came before.

Threads: ``submit`` in training and autograd threads, ``spread`` in the updater's, completions in
the exchange's. ``_lock`` guards everything here and is held while an operation is started (the
exchange's own locks come after it), not during callbacks.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore

from byteprophet.allreduce.groups import Groups, fixed_size, near_layer
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.timing import Timing
from byteprophet.observe.span_log import process_spans
from byteprophet.timeline.tables import Kind
from byteprophet.torch import agreement, same_start
from byteprophet.torch.collective_groups import PLACES, Group, Size, arranged, by_rule
from byteprophet.torch.dense import is_dense, share_of
from byteprophet.torch.exchange import Exchange, Sent, process_exchange
from byteprophet.torch.layer_spans import process_layers
from byteprophet.torch.naming import Names
from byteprophet.torch.stopwatch import process_stopwatch
from byteprophet.torch.synchroniser import Alone, Done, Synchroniser

Error = BaseException | None
PLANNED, TUNED, NEAR_LAYER = "planned", "tuned", "near-layer"
_GRADIENT = "Gradient."
_BUFFER_BYTES = 2_000_000  # until there is a plan
_NEAR_LAYERS = 4  # as in the DeAR paper
# Alike on all ranks.
_numbers = itertools.count()  # of synchronisers
_starts = itertools.count()  # of sets of parameters that were compared


@dataclass(frozen=True)
class _Submission:
    tensor: Tensor
    average: bool
    done: Done


@dataclass(eq=False)
class _Turn:
    """A group in one iteration: what was submitted, and what is to be spread."""

    group: Group
    label: str  # says which group it is, alike on all ranks
    iteration: int  # in which its gradients were made; halves may begin when the next one has begun
    submitted: dict[str, _Submission] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)
    spreading: dict[str, _Submission] = field(default_factory=dict)


@dataclass(frozen=True)
class Iteration:
    """When gradients were submitted, and ``flush`` was called, after the first of them."""

    ready_ns: Mapping[str, int]
    backward_ns: int


class CollectiveSynchroniser:
    """One per optimizer; the methods are ``Synchroniser``'s.

    ``mode`` is its ``sync``, ``options`` others of its options that all ranks must have alike.
    """

    def __init__(
        self,
        exchange: Exchange,
        mode: str,
        shareable: bool,
        fusion: int | str,
        timeout_s: float,
        options: Mapping[str, object],
    ) -> None:
        self._exchange = exchange
        self.mode = mode
        self._shareable = shareable
        self._fusion = fusion
        self.buffer_bytes = fusion if isinstance(fusion, int) else _BUFFER_BYTES
        self._timeout_s = timeout_s
        self._options = {"sync": mode, "elementwise": shareable, "fusion": fusion, **options}
        self._lock = threading.Lock()
        self._number = next(_numbers)
        self._parameters: dict[str, Size] = {}
        self._compared: dict[str, weakref.ref[Tensor]] = {}  # all ranks have their like
        self._groups: list[Group] = []
        self._group_of: dict[str, int] = {}
        self._generation = 0  # how often they were made
        self._turns: dict[int, _Turn] = {}  # reductions that wait for members, by place in _groups
        self._spreads: dict[str, _Turn] = {}
        self._counts: Counter[str] = Counter()  # of operations, by what they are for
        self._under_way: dict[str, int] = {}  # the last operation of a name submitted
        self._defers = False
        self._deferred: list[tuple[str, _Submission]] = []  # until the next iteration begins
        self._iteration = 0
        self._seen_ns: dict[str, int] = {}  # gradients of this iteration, until flush
        self._ready: Sequence[str] = ()  # the parameters in the order of readiness, and in that of
        self.needed: Sequence[str] = ()  # forward, as far as they are known
        self.position: Mapping[str, int] = {}  # in the agreed order of all, also of empty ones
        self.last_iteration = Iteration({}, 0)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._exchange.size

    @property
    def rank(self) -> int:
        """Of the calling process, 0 to ``size - 1``."""
        return self._exchange.rank

    @property
    def device_type(self) -> str:
        """Of the parameters."""
        return self._exchange.device_type

    @property
    def names(self) -> Names:
        """One table per process."""
        return self._exchange.names

    @property
    def grouped(self) -> bool:
        """In groups."""
        return True

    @property
    def in_order(self) -> bool:
        """If collectives carry them."""
        return self._exchange.in_order

    @property
    def shares(self) -> bool:
        """Where it can."""
        return self._shareable and self.mode != "allreduce"

    @property
    def arrangement(self) -> int:
        """Of the groups."""
        return self._generation

    def declare(self, names: Sequence[str]) -> None:
        """Names say enough."""

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Groups them anew, as if backward made them ready in the opposite order.

        Call when nothing of this optimizer is under way.
        """
        for name, parameter in named:
            if parameter.device.type != self._exchange.device_type:
                raise ValueError(
                    f"sync={self.mode!r}: parameter '{name}' is on {parameter.device}; the ranks "
                    f"exchange tensors on {self._exchange.device_type}: for others, give "
                    "init_process_group() another backend (backend='nccl' for GPUs)"
                )
            if not is_dense(parameter):
                raise ValueError(
                    f"sync={self.mode!r}: parameter '{name}' has gaps or overlaps in memory"
                )
        known = self._compared
        fresh = [(name, p) for name, p in named if name not in known or known[name]() is not p]
        if fresh:
            self._begin_alike(fresh)
            known.update((name, weakref.ref(p)) for name, p in fresh)
        with self._lock:
            # What is empty never travels, and must keep no group waiting.
            self._parameters = {
                name: Size(p.numel(), p.nbytes, p.dtype) for name, p in named if p.numel()
            }
            needed = list(self._parameters)
            self._regroup(needed[::-1], needed)

    def share(self, parameter: str) -> slice | None:
        """The same elements whatever the groups are, unless the group is whole."""
        with self._lock:
            place = self._group_of.get(parameter)
            if place is None or self._groups[place].whole:
                return None
            return share_of(self._parameters[parameter].elements, self.rank, self.size)

    def submit(
        self, name: str, tensor: Tensor, *, priority: int, average: bool, done: Done
    ) -> None:
        """Start the reduction of the group if this was its last member."""
        submission = _Submission(tensor, average, done)
        with self._lock:
            parameter = name.removeprefix(_GRADIENT)
            if name == parameter or parameter not in self._group_of:
                if self._defers:
                    self._deferred.append((name, submission))
                else:
                    self._sum(name, submission)
                return
            self._seen_ns[parameter] = time.monotonic_ns()
            place = self._group_of[parameter]
            turn = self._turns.get(place)
            if turn is None:
                turn = self._turns[place] = self._turn(place)
            turn.submitted[parameter] = submission
            if len(turn.submitted) == len(turn.group.parameters):
                self._reduce(self._turns.pop(place))

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Within it, what is no gradient is for the next iteration, if operations go in order.

        One that rank 0 asked for now would begin before updates that another rank waits for before
        it asks for the same.
        """
        with self._lock:
            self._sum_deferred()  # no iteration has begun since
        self._defers = self.in_order
        try:
            yield
        finally:
            self._defers = False

    def flush(self, updating: Collection[str]) -> None:
        """Reductions start with the members they have."""
        with self._lock:
            if self._seen_ns:
                first_ns, now_ns = min(self._seen_ns.values()), time.monotonic_ns()
                ready_ns = {name: ns - first_ns for name, ns in self._seen_ns.items()}
                self.last_iteration = Iteration(ready_ns, now_ns - first_ns)
                self._seen_ns = {}
            self._reduce_incomplete()
            updating = set(updating)
            for place, group in enumerate(self._groups):
                expected = updating.intersection(group.parameters)
                if expected and not group.whole:
                    turn = self._turn(place)
                    turn.expected = expected
                    self._spreads.update(dict.fromkeys(expected, turn))

    def spread(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Start the gather of the group if this was its last member."""
        with self._lock:
            turn = self._spreads.pop(parameter)
            turn.spreading[parameter] = _Submission(tensor, False, done)
            if len(turn.spreading) == len(turn.expected):
                members = {
                    n: turn.spreading[n] for n in turn.group.parameters if n in turn.spreading
                }
                position = self._position(turn.group.gather_place)
                self._gather(f"spread {turn.label}", position, members, turn.iteration)

    def complete(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """An operation by itself, before all else of this iteration."""
        with self._lock:
            members = {parameter: _Submission(tensor, False, done)}
            iteration = process_spans.iteration
            self._gather(f"complete {parameter}", self._position(0), members, iteration)

    def agreed(self, parameters: Sequence[str]) -> None:
        """Take rank 0's order of readiness, and group by it from the next iteration on."""
        names = list(self._parameters)
        place = {name: number for number, name in enumerate(names)}
        seen = self.last_iteration.ready_ns
        order = [place[name] for name in (*seen, *(name for name in names if name not in seen))]
        label = f"byteprophet.ready.{self._number}.{len(names)}"
        ready = agreement.agree(self, label, order, len(names), self._timeout_s)
        assert ready is not None
        with self._lock:
            self.position = {name: number for number, name in enumerate(parameters)}
            known = [name for name in parameters if name in self._parameters]
            self._regroup([names[number] for number in ready], known)

    def adopt(self, groups: Groups, order: Order) -> None:
        """Groups of places in ``needed``, from the next iteration on; on every rank alike."""
        with self._lock:
            self._reduce_incomplete()
            self._set_groups(
                arranged(self._parameters, self.needed, groups, order, self._shareable)
            )

    def use_buffers(self, buffer_bytes: int) -> None:
        """Groups of up to so many bytes, from the next iteration on; on every rank alike."""
        with self._lock:
            self.buffer_bytes = buffer_bytes
            self._regroup(self._ready, self.needed)

    def size_bytes(self, parameter: str) -> int:
        """Of its gradient."""
        return self._parameters[parameter].size_bytes

    def sent(self) -> Sent:
        """By this process, all told."""
        return self._exchange.sent()

    def awaited(self, name: str) -> str:
        """The ranks whose part has not come."""
        with self._lock:
            operation = self._under_way.get(name.removeprefix(_GRADIENT))
        ranks = [] if operation is None else self._exchange.missing(operation)
        if not ranks:
            return "it waits for others of its group, or to be sent"
        return f"of rank {' and '.join(str(rank) for rank in ranks)} nothing has come"

    def begin_iteration(self) -> None:
        """Positions of operations go by it."""
        with self._lock:
            self._iteration += 1
            self._sum_deferred()
        process_stopwatch.begin_iteration(self._iteration)
        process_layers.first_gradient(self._iteration)

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Nothing is scheduled by a policy."""
        raise ValueError(f"sync={self.mode!r} has no policy to configure")

    def preferred_partition_bytes(self) -> int:
        """There are no partitions."""
        return 0

    def let_go(self, timeout_s: float) -> None:
        """The exchange's thread."""
        self._exchange.let_go(timeout_s)

    def close(self) -> None:
        """The exchange is the process's."""
        self._exchange.close()

    def _begin_alike(self, named: Sequence[tuple[str, Tensor]]) -> None:
        exchange, start = self._exchange, f"start.{next(_starts)}"

        def all_here() -> None:
            # By the exchange, which sees and names who is gone.
            what = "start of DistributedOptimizer on all ranks"
            agreement.Collection(self, f"byteprophet.{start}", 0, what).wait(self._timeout_s)

        same_start.check(
            PrefixStore(start, exchange.store),
            exchange.rank,
            exchange.size,
            named,
            self._options,
            all_here,
        )
        same_start.take_first_ranks_values(named)

    def _regroup(self, ready: Sequence[str], needed: Sequence[str]) -> None:
        """REQUIRES: ``_lock`` is held."""
        self._reduce_incomplete()
        self._ready, self.needed = ready, needed
        self._set_groups(
            by_rule(self.mode, self._parameters, ready, needed, self._rule, self._shareable)
        )

    def _rule(self, timing: Timing) -> Groups:
        if self._fusion == NEAR_LAYER:
            return near_layer(timing, _NEAR_LAYERS)
        return fixed_size(timing, self.buffer_bytes)

    def _set_groups(self, groups: list[Group]) -> None:
        """REQUIRES: ``_lock`` is held."""
        self._groups = groups
        self._generation += 1
        self._group_of = {
            name: place for place, group in enumerate(self._groups) for name in group.parameters
        }

    def _reduce_incomplete(self) -> None:
        """REQUIRES: ``_lock`` is held."""
        for place in sorted(self._turns):
            self._reduce(self._turns.pop(place))

    def _turn(self, place: int) -> _Turn:
        label = f"{self._generation}.{place}"
        return _Turn(self._groups[place], label, process_spans.iteration)

    def _reduce(self, turn: _Turn) -> None:
        """REQUIRES: ``_lock`` is held."""
        group = turn.group
        members = {n: turn.submitted[n] for n in group.parameters if n in turn.submitted}
        submissions = list(members.values())
        number = self._operation(f"reduce {turn.label}")
        self._under_way.update(dict.fromkeys(members, number))
        over: Done = functools.partial(_end, submissions)
        if group.whole:
            position = self._position(group.gather_place)
            over = functools.partial(
                self._gather_averages, turn.label, position, members, turn.iteration
            )
        tensors = [submission.tensor for submission in submissions]
        self._exchange.reduce(
            number,
            tensors,
            submissions[0].average,
            self._position(group.reduce_place),
            _recorded(f"reduce {turn.label}", tensors, turn.iteration, over),
        )

    def _gather_averages(
        self,
        label: str,
        position: int,
        members: Mapping[str, _Submission],
        iteration: int,
        error: Error,
    ) -> None:
        """The reduction of ``members`` is over."""
        submissions = list(members.values())
        if error is not None:
            _end(submissions, error)
            return
        try:
            with self._lock:
                self._gather(f"gather {label}", position, members, iteration)
        except RuntimeError as left:  # whoever waits for it raises it
            _end(submissions, left)

    def _gather(
        self, label: str, position: int, members: Mapping[str, _Submission], iteration: int
    ) -> None:
        """REQUIRES: ``_lock`` is held."""
        number = self._operation(label)
        self._under_way.update(dict.fromkeys(members, number))
        tensors = [submission.tensor for submission in members.values()]
        over = functools.partial(_end, list(members.values()))
        recorded = _recorded(label, tensors, iteration, over)
        self._exchange.gather(number, tensors, position, recorded)

    def _sum(self, name: str, submission: _Submission) -> None:
        """Before all else. REQUIRES: ``_lock`` is held."""
        number = self._operation(f"reduce {name}")
        self._under_way[name] = number
        members, iteration = {name: submission}, process_spans.iteration
        over = functools.partial(self._gather_averages, name, 0, members, iteration)
        self._exchange.reduce(number, [submission.tensor], submission.average, 0, over)

    def _sum_deferred(self) -> None:
        """REQUIRES: ``_lock`` is held."""
        deferred, self._deferred = self._deferred, []
        for name, submission in deferred:
            self._sum(name, submission)

    def _operation(self, label: str) -> int:
        """A number for an operation. REQUIRES: ``_lock`` is held."""
        self._counts[label] += 1
        text = f"{self._number} {label} {self._counts[label]}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    def _position(self, place: int) -> int:
        return self._iteration * PLACES + place


def _end(submissions: Sequence[_Submission], error: Error) -> None:
    for submission in submissions:
        submission.done(error)


def _recorded(label: str, tensors: Sequence[Tensor], iteration: int, over: Done) -> Done:
    """``over``, and a span of ``iteration`` from here on, where spans are wanted."""
    if not process_spans.on:
        return over
    begin_ns = process_spans.clock()

    def recorded(error: Error) -> None:
        process_spans.add(
            Kind.COLLECTIVE,
            label,
            begin_ns,
            process_spans.clock(),
            iteration=iteration,
            size_bytes=sum(tensor.nbytes for tensor in tensors),
            lane=process_spans.lane(label),
        )
        over(error)

    return recorded


def make(
    mode: str,
    shareable: bool,
    fusion: int | str,
    timeout_s: float,
    options: Mapping[str, object],
) -> Synchroniser:
    """A synchroniser of the ranks of torch.distributed's default group; all ranks make it.

    ``ValueError`` if there is no such group, and for a ``fusion`` that is no such rule or size.
    """
    sized = type(fusion) is int and fusion > 0
    if not sized and fusion not in (PLANNED, TUNED, NEAR_LAYER):
        raise ValueError(
            f"fusion={fusion!r}: must be {PLANNED!r}, {TUNED!r}, {NEAR_LAYER!r} or a number of "
            "bytes from 1"
        )
    if distributed.is_initialized() and distributed.get_world_size() == 1:
        return Alone()
    exchange = process_exchange(timeout_s)
    return CollectiveSynchroniser(exchange, mode, shareable, fusion, timeout_s, options)
