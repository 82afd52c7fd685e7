"""The ranks among which a model is sharded.

Threads: the training thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store

from byteprophet.torch.sync import failures, same_start
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.sync.gathering import wait_for_all
from byteprophet.torch.sync.single_tensors import all_gather

_MADE = Call("made DistributedOptimizer with sync='fsdp2'", advice=", with the same strategy")

_models = itertools.count()  # the same number on all ranks


class Group:
    """All ranks of the default group. All of them must make this together.

    Attributes:
        rank: the rank of this process.
        size: how many there are.
        number: of the model, among those of this process that are sharded; from 0.
        mesh: FSDP2's, for all-gathers.
        reduces: a process group for reduce-scatters, so that no rank can take one for the other.
    """

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], options: Mapping[str, object], timeout_s: float
    ) -> None:
        """Compare the parameters and ``options`` of all ranks.

        Raises ``UserError`` if they differ, and ``TimedOut`` if a rank is missing.
        """
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.timeout_s = timeout_s
        default: Store = distributed.distributed_c10d._get_default_store()
        self.number = next(_models)
        name = f"byteprophet.fsdp2.{self.number}"
        same_start.check_group("sync='fsdp2'", f"{name}.start", _MADE, named, options, timeout_s)
        self._store = PrefixStore(name, default)
        self._meetings = itertools.count()
        timeout = timedelta(seconds=timeout_s)
        self.gathers = distributed.new_group(backend="gloo", timeout=timeout)
        self.reduces = distributed.new_group(backend="gloo", timeout=timeout)
        self.mesh = DeviceMesh.from_group(self.gathers, "cpu")

    def meet(self, call: Call) -> None:
        """Wait until all ranks have made this ``call``, before one of its collectives begins."""
        store = PrefixStore(f"meeting.{next(self._meetings)}", self._store)
        wait_for_all(store, self.rank, self.size, call, self.timeout_s)

    def take_first_ranks(self, values: Sequence[int]) -> list[int]:
        """Rank 0's ``values``, of which all ranks have equally many."""
        told = torch.tensor(values, dtype=torch.int64)
        distributed.broadcast(told, 0, group=self.gathers)
        return [int(each) for each in told]


class Announcement:
    """What each rank is about to do, which must be the same on all of them.

    It is sent at once, and compared by ``check``, so that both can be apart.
    """

    def __init__(self, group: Group, kind: int, counts: Sequence[int]) -> None:
        self._group = group
        mine = torch.tensor([kind, *counts], dtype=torch.int64)
        self._all = torch.empty(group.size * len(mine), dtype=torch.int64)
        self._mine = mine
        self._work = all_gather(self._all, mine, group=group.gathers, async_op=True)

    def check(self, does: Sequence[str]) -> None:
        """Wait for all ranks. ``does``: what a rank does whose kind is the place in it.

        Raises ``TimedOut`` or ``PeerLost`` if a rank does not come, and ``RuntimeError`` if one
        does something else.
        """
        assert self._work is not None
        try:
            self._work.wait()
        except RuntimeError as error:
            raise failures.of_collective(
                error,
                "byteprophet: sync='fsdp2': not all ranks have called the model, each of which has "
                "a shard of its parameters: all must call it equally often, in evaluation, too "
                f"({str(error).partition(chr(10))[0]})",
            ) from None
        said = self._all.view(self._group.size, -1)
        mine = said[self._group.rank]
        for rank in range(self._group.size):
            if not torch.equal(said[rank], mine):
                kinds = does[int(said[rank][0])], does[int(mine[0])]
                if kinds[0] == kinds[1]:
                    kinds = "has made another number of backward passes", "has not"
                raise RuntimeError(
                    f"byteprophet: sync='fsdp2': rank {rank} {kinds[0]} where rank "
                    f"{self._group.rank} {kinds[1]}: all ranks must call the model together, "
                    "because each has a shard of its parameters"
                )
