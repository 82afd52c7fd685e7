"""The synchroniser that averages gradients by collective operations among ranks, without servers.

A gradient waits until its bucket is complete on this rank. Then the bucket's reduce-scatter starts.
If the bucket is whole, an all-gather of the averages follows. If it is sharded, ``all_gather``
later gathers the parameters, also bucket by bucket. ``flush`` starts buckets that still wait for
gradients, because those take no part in this iteration. All ranks flush at the same place in the
script, with the same gradients. Messages (``agreement.py``) are summed at once. If operations begin
in the order of rank 0's requests, all that the script causes waits for outstanding updates first
(``outstanding.py``).

Threads: gradients are submitted in training and autograd threads, ``all_gather`` runs in the
updater's, and completions run in the exchange's. ``_lock`` guards the buckets and the assignment of
parameters to them. It is held while an operation is started, but not during callbacks. A thread
takes it before the locks of ``operations.py``, ``messages.py`` and the exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from byteprophet import job
from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.job.owners import Owners, text_of
from byteprophet.job.staleness import steps_by_name
from byteprophet.observe.span_log import process_spans
from byteprophet.observe.strategy_recording import record_strategy
from byteprophet.tensor_names import gradient_name
from byteprophet.torch.sync import agreement, same_start
from byteprophet.torch.sync.bucket import Bucket
from byteprophet.torch.sync.bucket_layout import Size
from byteprophet.torch.sync.bucketing import PLANNED, Bucketing
from byteprophet.torch.sync.changed import Compared
from byteprophet.torch.sync.completion import Call, Done
from byteprophet.torch.sync.compression_state import CompressionState
from byteprophet.torch.sync.exchange import Exchange, Sent
from byteprophet.torch.sync.fitness import refuse_unfit
from byteprophet.torch.sync.messages import Messages
from byteprophet.torch.sync.operations import Operations, Submission
from byteprophet.torch.sync.outstanding import finish_updates
from byteprophet.torch.sync.readiness import Iteration, Readiness
from byteprophet.torch.sync.setup import Setup
from byteprophet.torch.tensors.naming import Names

_MADE = Call("called DistributedOptimizer() or add_param_group()")


class CollectiveSynchroniser:
    """There is one per optimizer. ``Synchroniser`` describes most of the methods.

    ``setup.changes`` is recorded with the buckets, if this ``records`` them.
    """

    bucketed = True
    takes_rows = False
    compression: CompressionState | None = None

    def __init__(self, exchange: Exchange, setup: Setup, records: bool = True) -> None:
        self._changes = setup.changes
        self._records = records
        self._gives_values = setup.gives_values
        self.mode = setup.mode
        self.owners = setup.owners
        self.bucketing = Bucketing(
            setup.mode, setup.shardable, setup.fusion, steps_by_name(setup.changes.staleness)
        )
        self._planned = setup.fusion == PLANNED
        self._exchange = exchange
        self._timeout_s = setup.timeout_s
        self._options = {
            "sync": setup.mode,
            "elementwise": setup.shardable,
            "fusion": setup.fusion,
            "owners": text_of(setup.owners.weights),
            **setup.options,
        }
        self._lock = threading.Lock()
        self._number = next(exchange.numbers)
        self._operations = Operations(exchange, self._number, setup.owners)
        self._messages = Messages(self._operations, exchange)
        self._readiness = Readiness()
        self._compared: dict[str, Compared] = {}
        self._filling: dict[int, Bucket] = {}  # waiting for gradients, by layout index
        self._updating: dict[str, Bucket] = {}  # buckets waiting for updates, by parameter

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._exchange.size

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        return self._exchange.rank

    @property
    def device_type(self) -> str:
        """The device type of the parameters."""
        return self._exchange.device_type

    @property
    def names(self) -> Names:
        """The table of names, shared by all optimizers that use this exchange."""
        return self._exchange.names

    @property
    def shards(self) -> bool:
        """Whether buckets may be sharded: in every mode but ``"allreduce"``, if ``shardable``."""
        return self.bucketing.shardable and self.mode != "allreduce"

    @property
    def layout_version(self) -> int:
        """The version of the current buckets."""
        return self.bucketing.layout_version

    @property
    def last_iteration(self) -> Iteration:
        """The ready times of the last iteration's gradients."""
        return self._readiness.last

    def declare(self, names: Sequence[str]) -> None:
        """Do nothing: operations are identified by name."""

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Make new buckets, assuming that backward makes gradients ready in reverse order.

        No transfer of this optimizer may be in flight.
        """
        self.begin_alike(named)
        # Empty gradients are never sent, so no bucket may wait for them.
        bucketed = [(name, p) for name, p in self._bucketed(named) if p.numel()]
        self.carry({name: Size(p.numel(), p.nbytes, p.dtype) for name, p in bucketed})

    def begin_alike(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Check that all ranks have the same parameters, and maybe give them rank 0's values.

        This leaves out parameters for which it was done before. Every rank must call this. Raises
        ``ValueError`` if a parameter cannot be sent, or differs on a rank.
        """
        refuse_unfit(self.mode, self._exchange, named)
        known = self._compared
        fresh = [
            (name, p) for name, p in named if name not in known or known[name].tensor() is not p
        ]
        if fresh:
            self._compare(fresh)
            known.update((name, Compared.of(p)) for name, p in fresh)

    def carry(self, sizes: Mapping[str, Size]) -> None:
        """Make new buckets for gradients of these ``sizes``, in place of all others."""
        with self._lock:
            self._reduce_incomplete()
            self.bucketing.set_parameters(sizes)
        self._record_buckets()

    def shard(self, parameter: str) -> slice | None:
        """The elements that this rank owns if the parameter's bucket is sharded, else None.

        They do not depend on the assignment to buckets.
        """
        with self._lock:
            if not self.bucketing.is_sharded(parameter):
                return None
            return self.owners.shard(self.bucketing.sizes[parameter].elements, self.rank)

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Average the gradient: in its bucket, unless a subclass averages it on its own.

        Raises ``RuntimeError`` if the parameter's type, size or kind of device has changed.
        """
        self.refuse_changed(parameter)
        self._submit(parameter, gradient, done)

    def refuse_changed(self, parameter: str) -> None:
        """Raise ``RuntimeError`` if ``parameter`` is not what was compared, as after ``.half()``.

        A script may give a parameter other values (``p.data = ...``), and it stays the same object.
        """
        compared = self._compared.get(parameter)  # None: of a piece of one
        if compared is not None:
            compared.refuse_changed(parameter)

    def _submit(self, parameter: str, gradient: Tensor, done: Done) -> None:
        """Add the gradient to its bucket, and reduce the bucket if it is complete."""
        finish_updates(self._exchange)
        with self._lock:
            place = self.bucketing.bucket_of(parameter)
            assert place is not None, f"{parameter} was not declared, or has no elements"
            self._readiness.note(parameter)
            bucket = self._filling.get(place)
            if bucket is None:
                parameters = self.bucketing.layouts[place].parameters
                bucket = self._filling[place] = self._bucket(place, parameters)
            if bucket.add(parameter, Submission(gradient, done)):
                self._filling.pop(place).reduce_gradients()

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """Sum the message over all ranks at once, unless messages are deferred."""
        self._messages.send(name, Submission(message, done))

    def deferring(self) -> AbstractContextManager[None]:
        """See ``Messages``."""
        return self._messages.deferring()

    def flush(self, updating: Collection[str]) -> None:
        """Start the reduce-scatters of incomplete buckets, and expect updates of ``updating``."""
        finish_updates(self._exchange)
        updating = set(updating)
        with self._lock:
            self._readiness.flush()
            self._reduce_incomplete()
            for place, layout in enumerate(self.bucketing.layouts):
                expected = updating.intersection(layout.parameters)
                if expected and not layout.whole:
                    bucket = self._bucket(place, expected)
                    self._updating.update(dict.fromkeys(expected, bucket))

    def all_gather(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Add the parameter to its bucket, and all-gather the bucket if it is complete."""
        with self._lock:
            bucket = self._updating.pop(parameter)
            if bucket.add(parameter, Submission(tensor, done)):
                bucket.gather_parameters()

    def unshard(
        self,
        parameter: str,
        tensor: Tensor,
        what: str,
        *,
        done: Done,
        owners: Owners | None = None,
    ) -> None:
        """All-gather this tensor alone, before all other operations of this iteration."""
        finish_updates(self._exchange, averages=True)
        members = {gradient_name(parameter): Submission(tensor, done)}
        label = f"unshard {what} {parameter}"
        position = self._operations.position(0)
        self._operations.all_gather(label, members, position, process_spans.iteration, owners)

    def declare_buffers(self) -> None:
        """Do nothing: operations are identified by name."""

    def holds_back(self, parameter: str) -> bool:
        """Return True: gradients wait for others of their bucket, or are sharded."""
        return True

    def separate(self) -> None:
        """Do nothing: no names are shared."""

    def resumed(self) -> None:
        """Do nothing: jobs without servers are not resumed."""

    def agreed(self, parameters: Sequence[str]) -> Sequence[int]:
        """Agree on rank 0's order of ready gradients, and make new buckets by both orders."""
        names = list(self.bucketing.sizes)
        place = {name: number for number, name in enumerate(names)}
        seen = self.last_iteration.ready_ns
        order = [place[name] for name in (*seen, *(name for name in names if name not in seen))]
        label = f"byteprophet.ready.{self._number}.{len(names)}"
        ready = agreement.agree(self, label, order, len(names), self._timeout_s)
        assert ready is not None
        with self._lock:
            self._reduce_incomplete()
            self.bucketing.set_orders([names[number] for number in ready], parameters)
        self._record_buckets()
        return range(len(parameters))

    def adopt(self, groups: Groups, order: Order) -> None:
        """Adopt a plan from the next iteration on (see ``Bucketing``). All ranks must do so."""
        with self._lock:
            self._reduce_incomplete()
            self.bucketing.adopt(groups, order)
        self._record_buckets()

    def begin_whole(self) -> None:
        """Shard no bucket until a plan is adopted. All ranks must do so, before the first step."""
        with self._lock:
            self._reduce_incomplete()
            self.bucketing.begin_whole()
        self._record_buckets()

    def use_buckets_of(self, bucket_bytes: int) -> None:
        """Make buckets of up to ``bucket_bytes``, from the next iteration on, on every rank."""
        with self._lock:
            self._reduce_incomplete()
            self.bucketing.set_bucket_bytes(bucket_bytes)
        self._record_buckets()

    def sent(self) -> Sent:
        """What this process has sent in total."""
        return self._exchange.sent()

    def awaited(self, name: str) -> str:
        """Name the ranks whose part of ``name`` has not arrived, for messages."""
        ranks = self.late(name)
        if not ranks:
            return "it waits for other gradients of its bucket, or to be sent"
        return (
            f"of rank {' and '.join(str(rank) for rank in ranks)} nothing has come: it is slow, "
            "stands in another call, or has left its loop"
        )

    def late(self, name: str) -> list[int]:
        """The ranks whose part of ``name`` has not arrived, as far as its operation has begun."""
        return self._operations.missing(name)

    def begin_iteration(self) -> int:
        """Begin an iteration: send deferred messages, and return the iteration's number."""
        finish_updates(self._exchange)
        with self._lock:
            number = self._operations.begin_iteration()
            self._messages.send_deferred()
            return number

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Raises ``ValueError``, because no policy schedules these transfers."""
        raise ValueError(f"sync={self.mode!r} has no policy to configure")

    def preferred_partition_bytes(self) -> int:
        """Return 0: there are no partitions."""
        return 0

    def let_go(self, timeout_s: float) -> None:
        """Wait until the exchange's threads hold no tensor."""
        self._exchange.let_go(timeout_s)

    def close(self) -> None:
        """Close the exchange, which all optimizers of this process share."""
        self._exchange.close()

    def _bucketed(self, named: Sequence[tuple[str, Tensor]]) -> Sequence[tuple[str, Tensor]]:
        """Return the parameters whose gradients travel in buckets."""
        return named

    def _compare(self, named: Sequence[tuple[str, Tensor]]) -> None:
        exchange = self._exchange
        start = f"start.{next(exchange.numbers)}"

        def all_here() -> None:
            # The exchange carries this message, because it detects and names ranks that are gone.
            what = "start of DistributedOptimizer on all ranks"
            agreement.Collection(self, f"byteprophet.{start}", 0, what, _MADE).wait(self._timeout_s)

        same_start.check(
            PrefixStore(start, exchange.store),
            exchange.rank,
            exchange.size,
            named,
            self._options,
            all_here,
        )
        if self._gives_values:
            same_start.take_first_ranks_values(named)

    def _record_buckets(self) -> None:
        """On rank 0, record the buckets that are used from the next iteration on."""
        sizes_bytes = self._recorded_sizes()
        if self._records and self.rank == 0 and sizes_bytes:
            buckets = (
                job.Bucket(each.parameters, each.reduce_place, each.gather_place, not each.whole)
                for each in self.bucketing.layouts
            )
            fixed_bytes = 0 if self._planned else self.bucketing.bucket_bytes
            record_strategy(
                replace(
                    self._changes,
                    runtime=self.mode,
                    buckets=tuple(buckets),
                    bucket_bytes=fixed_bytes,
                    owners=self.owners.unequal,
                    shardable=self.bucketing.shardable,
                ),
                sizes_bytes,
                since=self._operations.iteration + 1,
                optimizer=self._number,
            )

    def _recorded_sizes(self) -> dict[str, int]:
        """The bytes of the gradients that are exchanged, by parameter, in forward order."""
        return {name: self.bucketing.sizes[name].size_bytes for name in self.bucketing.needed}

    def _reduce_incomplete(self) -> None:
        """Start the reduce-scatters of incomplete buckets. REQUIRES: ``_lock`` is held."""
        for place in sorted(self._filling):
            self._filling.pop(place).reduce_gradients()

    def _bucket(self, place: int, expects: Collection[str]) -> Bucket:
        """Make an empty bucket of this iteration. REQUIRES: ``_lock`` is held."""
        bucketing = self.bucketing
        label = f"{bucketing.layout_version}.{place}"
        layout = bucketing.layouts[place]
        return Bucket(self._operations, layout, label, process_spans.iteration, expects)
