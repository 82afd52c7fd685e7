"""The synchroniser of a job with two transports: servers, and the mesh of the ranks.

A strategy routes every gradient, or the pieces of one (``job/routes.py``). This synchroniser passes
each part to one of two others: ``servers`` is BytePS' with its buffers, and ``mesh`` all-reduces
among the ranks. Each of them knows only its own parts, under the parts' names. What both need is
done once, here:

- *Iterations*: ``begin_iteration`` begins one on both. Its number is that of the servers' policy.
- *Messages* (agreements, plans) travel over the mesh. It does not depend on the order in which
  ranks send them, and it names ranks that are gone.
- *The start*: the mesh compares all parameters, and the digest of the strategy, and gives all ranks
  rank 0's values, also those of gradients that go to servers.
- *Pace*: if the strategy says so, the mesh is paced while servers have gradients (``pacing.py``).
- *Shards*: a gradient that goes to servers is whole on every rank. One that goes over the mesh may
  be sharded, unless some gradient of the optimizer is cut.

Exactness: an element is averaged by one of the two, from the same values as in a job of that
transport alone. The mesh adds in the order of the ranks, and a server in the order of arrival. So
with two ranks, results have the same bits as with either one.

Threads: like those of the two (``synchroniser.py``). The parts of a cut gradient arrive in threads
of both; ``_Together`` has a lock of its own, which is not held during ``done``. The training thread
alone changes ``_parts`` and ``_places``, while nothing is in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from byteprophet.errors import UserError
from byteprophet.job.other_model import other_model
from byteprophet.job.owners import Owners
from byteprophet.job.routes import MESH, SERVERS, Part, parts_of
from byteprophet.job.strategy_file import Used
from byteprophet.tensor_names import PARAMETER_PREFIX, gradient_name, parameter_of
from byteprophet.torch.sync import compressed
from byteprophet.torch.sync.bucket_layout import Size
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
from byteprophet.torch.sync.completion import Done
from byteprophet.torch.sync.compression_state import CompressionState
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
from byteprophet.torch.sync.pacing import Pacing
from byteprophet.torch.sync.synchroniser import Synchroniser
from byteprophet.torch.tensors.naming import Names


class RoutingSynchroniser:
    """There is one per optimizer. ``Synchroniser`` describes the methods.

    ``used`` is the strategy in the file ``path``, which messages name. ``pacing``: None if the mesh
    is not paced.
    """

    bucketed = True
    takes_rows = False
    compression: CompressionState | None = None

    def __init__(
        self,
        servers: FusedSynchroniser,
        mesh: CollectiveSynchroniser,
        used: Used,
        path: str,
        pacing: Pacing | None = None,
    ) -> None:
        self.servers = servers
        self.mesh = mesh
        self._ways: Mapping[str, Synchroniser] = {SERVERS: servers, MESH: mesh}
        self._used = used
        self._path = path
        self._pacing = pacing
        self._parts: dict[str, list[Part]] = {}
        for part in parts_of(used.strategy.routes):
            self._parts.setdefault(part.tensor, []).append(part)
        self._element_bytes: dict[str, int] = {}  # of each parameter
        self._places: dict[str, int] = {}  # of what goes to servers, once the order is agreed

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size

    @property
    def rank(self) -> int:
        """The rank of this process, 0 to ``size - 1``."""
        return self.mesh.rank

    @property
    def names(self) -> Names:
        """The servers' table of names, because BytePS knows tensors by name in all the process."""
        return self.servers.names

    @property
    def shards(self) -> bool:
        """Whether gradients that go over the mesh may be sharded."""
        return self.mesh.shards

    @property
    def owners(self) -> Owners:
        """Who owns what of the parameters that are sharded."""
        return self.mesh.owners

    @property
    def layout_version(self) -> int:
        """The version of the mesh's buckets."""
        return self.mesh.layout_version

    def declare(self, names: Sequence[str]) -> None:
        """Declare to BytePS what goes to servers, and parameters, which are broadcast there.

        The mesh identifies operations by name.
        """
        known: list[str] = []
        for name in names:
            parameter = parameter_of(name)
            if parameter is not None:
                parts = self._parts.get(parameter, [])
                known += [gradient_name(part.name) for part in parts if part.way == SERVERS]
            elif name.startswith(PARAMETER_PREFIX):
                known.append(name)
        self.servers.declare(known)

    def declare_parameters(self, named: Sequence[tuple[str, Tensor]]) -> None:
        """Give both transports their parts. No transfer of this optimizer may be in flight.

        Raises ``UserError`` if these are not the parameters of the strategy's model, or if one
        cannot travel as the strategy says.
        """
        sent = [(name, p) for name, p in named if p.numel()]
        self.mesh.begin_alike(named)
        self._check(sent)
        self._element_bytes = {name: p.element_size() for name, p in sent}
        self._places = {}
        sizes: dict[str, Size] = {}
        served: list[tuple[str, Tensor]] = []
        for name, parameter in sent:
            for part in self._parts[name]:
                elements = part.size_bytes // parameter.element_size()
                if part.way == MESH:
                    sizes[part.name] = Size(elements, part.size_bytes, parameter.dtype)
                else:
                    served.append((part.name, _stand_in(parameter, elements)))
        self.mesh.carry(sizes)
        self.servers.declare_parameters(served)

    def _check(self, named: Sequence[tuple[str, Tensor]]) -> None:
        for name, parameter in named:
            route = self._parts.get(name)
            if route is None:
                self._refuse(f"parameter {name!r} of this model has no route")
            size_bytes = sum(part.size_bytes for part in route)
            if size_bytes != parameter.nbytes:
                self._refuse(
                    f"parameter {name!r} has {size_bytes} bytes, and {parameter.nbytes} in this "
                    "model"
                )
            if any(part.size_bytes % parameter.element_size() for part in route):
                self._refuse(f"a piece of {name!r} ends within an element of {parameter.dtype}")
            if gradient_name(name) in compressed.names and [p.way for p in route] != [SERVERS]:
                raise UserError(
                    f"{self._path}: the script compresses the gradient of {name!r} with one of "
                    "BytePS' compressors, so it can only go to servers, whole"
                )
        missing = self._parts.keys() - {name for name, _ in named}
        if missing:
            self._refuse(f"parameter {min(missing)!r} is not in this model")

    def _refuse(self, difference: str) -> NoReturn:
        raise other_model(self._path, difference)

    def submit_gradient(
        self, parameter: str, gradient: Tensor, *, priority: int, done: Done
    ) -> None:
        """Pass the gradient, or its pieces, to the transports."""
        self.mesh.refuse_changed(parameter)
        parts = self._parts[parameter]
        if len(parts) == 1:
            self._pass(parts[0], gradient, priority, done)
            return
        together = _Together(len(parts), done)
        flat, element_bytes = gradient.view(-1), self._element_bytes[parameter]
        for part in parts:
            first = part.first_byte // element_bytes
            piece = flat[first : first + part.size_bytes // element_bytes]
            place = self._places.get(part.name)
            own = priority if place is None else -1 - place
            try:
                self._pass(part, piece, own, together.arrived)
            except Exception as error:  # noqa: BLE001 (the waiting thread raises it)
                together.arrived(error)

    def _pass(self, part: Part, tensor: Tensor, priority: int, done: Done) -> None:
        if part.way == SERVERS and self._pacing is not None:
            done = self._pacing.during(done)
        self._ways[part.way].submit_gradient(part.name, tensor, priority=priority, done=done)

    def submit_message(self, name: str, message: Tensor, *, done: Done) -> None:
        """Sum the message over the mesh."""
        self.mesh.submit_message(name, message, done=done)

    def shard(self, parameter: str) -> slice | None:
        """The elements that this rank owns; None (all) of what goes to servers, or is cut."""
        parts = self._parts.get(parameter, [])  # none: it has no elements
        if [part.way for part in parts] != [MESH]:
            return None
        return self.mesh.shard(parameter)

    def flush(self, updating: Collection[str]) -> None:
        """See ``Synchroniser``."""
        self.servers.flush(updating)
        self.mesh.flush(updating)

    def all_gather(self, parameter: str, tensor: Tensor, *, done: Done) -> None:
        """Gather it over the mesh: what goes to servers has no shards."""
        self.mesh.all_gather(parameter, tensor, done=done)

    def unshard(
        self,
        parameter: str,
        tensor: Tensor,
        what: str,
        *,
        done: Done,
        owners: Owners | None = None,
    ) -> None:
        """Gather it over the mesh, even if the gradient goes to servers.

        A state that was saved under another strategy may have shards of any parameter.
        """
        self.mesh.unshard(parameter, tensor, what, done=done, owners=owners)

    def declare_buffers(self) -> None:
        """Declare the names of the servers' buffers."""
        self.servers.declare_buffers()

    def agreed(self, parameters: Sequence[str]) -> Sequence[int]:
        """Tell both transports the order, each for its own parts.

        A gradient that does not go to servers has the place of the last message to servers that
        forward needs before it. So the forward times that are measured between two places add up
        to those between the two messages, whatever else is needed in between.
        """
        parts = [part for name in parameters for part in self._parts.get(name, [])]
        served = [part.name for part in parts if part.way == SERVERS]
        self._places = dict(zip(served, self.servers.agreed(served), strict=True))
        self.mesh.agreed([part.name for part in parts])
        found: list[int] = []
        last = 0
        for name in parameters:
            own = [
                self._places[part.name] for part in self._parts.get(name, []) if part.way == SERVERS
            ]
            found.append(min(own, default=last))
            last = max(own, default=last)
        return found

    def holds_back(self, parameter: str) -> bool:
        """Whether some part of the gradient waits for others of its buffer or bucket."""
        parts = self._parts.get(parameter, [])
        held = [self._ways[part.way].holds_back(part.name) for part in parts]
        return any(held)

    def separate(self) -> None:
        """See ``Synchroniser``."""
        self.servers.separate()

    def resumed(self) -> None:
        """Raise ``RuntimeError``: the ranks of the mesh cannot change."""
        raise RuntimeError(f"byteprophet: {self.why_not_resumed('resume')}")

    def why_not_resumed(self, call: str) -> str:
        """Why a job with this optimizer cannot be suspended or resumed, by ``call``."""
        return (
            f"{call}(): {self._path} lets gradients travel among the ranks, whose number cannot "
            "change: use a strategy of servers alone"
        )

    def awaited(self, name: str) -> str:
        """See ``Synchroniser``. Of a cut gradient, it is about a piece that is known to be late."""
        own = self._carriers(name)
        late = [each for each in own if each[0].late(each[1])]
        carrier, part = (late or own)[0]
        return carrier.awaited(part)

    def late(self, name: str) -> list[int]:
        """The ranks whose part of ``name``, or of a piece of it, has not arrived."""
        found = {rank for carrier, part in self._carriers(name) for rank in carrier.late(part)}
        return sorted(found)

    def _carriers(self, name: str) -> list[tuple[Synchroniser, str]]:
        """What carries ``name``, and under which names."""
        parameter = parameter_of(name)
        parts = [] if parameter is None else self._parts.get(parameter, [])
        found = [(self._ways[part.way], gradient_name(part.name)) for part in parts]
        return found or [(self.mesh, name)]

    def begin_iteration(self) -> int:
        """Begin an iteration on both transports. Its number is the policy's."""
        number = self.servers.begin_iteration()
        self.mesh.begin_iteration()
        return number

    def reconfigure(self, settings: Mapping[str, int]) -> None:
        """Change settings of the servers' policy."""
        self.servers.reconfigure(settings)

    def preferred_partition_bytes(self) -> int:
        """See ``Synchroniser``."""
        return self.servers.preferred_partition_bytes()

    def let_go(self, timeout_s: float) -> None:
        """See ``Synchroniser``."""
        self.servers.let_go(timeout_s)
        self.mesh.let_go(timeout_s)

    def close(self) -> None:
        """Close the servers' first, because its last messages travel over the mesh."""
        self.servers.close()
        self.mesh.close()


class _Together:
    """Calls ``done`` once: when all parts of a gradient have arrived, or at the first error."""

    def __init__(self, count: int, done: Done) -> None:
        self._missing = count
        self._done = done
        self._lock = threading.Lock()

    def arrived(self, error: BaseException | None) -> None:
        """Note that a part has arrived, or failed."""
        with self._lock:
            ends = self._missing > 0 and (error is not None or self._missing == 1)
            self._missing = 0 if error is not None else self._missing - 1
        if ends:
            self._done(error)


def _stand_in(parameter: Tensor, elements: int) -> Tensor:
    """A tensor of a part's size and type, without memory."""
    part = torch.empty(elements, dtype=parameter.dtype, device="meta")
    return part.requires_grad_(parameter.requires_grad)
