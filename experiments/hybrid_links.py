"""What gloo's collectives cost on the links of ``hybrid.py``, measured as jobs issue them.

Each collective is the only one on the links, but it is not alone otherwise. A paced device computes
before it, for as long as operators of jobs do: then threads are asleep, connections idle, and the
limited link lets some bytes pass at once. It begins when the device has finished, and the device
goes on when it is complete, with all that Python, DTensor and gloo do in between. Each kind is
issued in both ways in which jobs issue it: as DTensor redistributes a tensor, and as
DistributedDataParallel, FSDP2 and pipelining call ``torch.distributed``. The time is that from when
the last rank's device finished to when the last rank's device could go on.

Two things are made of it. Three constants are fitted, as ``byteprophet simulate --calibrate`` fits
them: the latency of a collective, that of a step, and the part of the link's rate that is reached.
And each kind, size and number of ranks has the time that was measured for it. In a job of four
ranks, pairs are measured, too, all at once, as jobs with two axes use them.

Last, all-reduces of pairs run beside a long one of all ranks. They take the time that half of the
link's rate gives them, and as long again in each pass as the link's queue holds bytes of the other.

An all-gather between two ranks takes the time of its bytes, or half as much again. gloo sends each
half of a rank's part, and then asks for the other rank's. A message travels when it was asked for.
So if the other rank has asked before, which 0.1 ms decides, the first half leaves at once, and the
own request waits behind it. The other direction is idle meanwhile. Jobs meet both cases, so the
time is the mean; constants are fitted on the shorter one. With three ranks and more, requests
travel against the ring and wait for nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from hybrid_device import Device, Watch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from byteprophet.errors import JobFailed
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.collectives import OneCollective

_SIZES = tuple(1 << at for at in (16, 18, 19, 20, 21, 22, 23))
"""Bytes of a collective's whole tensor."""
_LEAST_FITTED_BYTES = 1 << 19
"""A limited link lets a large part of smaller ones pass at once. Constants are not fitted on
these, but they have their times."""
_PAUSES_MS = (20, 100, 400)
"""How long the device computes before, in turn."""
_ROUNDS = 3
"""Of all pauses; before them, each collective runs once."""
_QUEUED_BYTES, _BESIDE_BYTES, _QUEUED_ROUNDS = (1 << 20, 1 << 21), 1 << 25, 3
"""Of all-reduces beside another one, and of that one."""
_BEGUN_S = 0.1
"""When the other one is under way."""
_BESIDE, _ALL_REDUCE_PASSES = "all-reduce beside another", 2
_QUANTILE = 0.25
"""Of the times of a collective that has one: what else runs only makes it slower."""
_BURST, _LARGEST_SEGMENT = "64kb", "32768"
_LATENCY = "20ms"  # as the launcher has it
_COMMAND_TIMEOUT_S = 10.0


class Measured(NamedTuple):
    """The times of one collective on one rank.

    Attributes:
        kind: its kind, as the simulator calls it.
        way: how it was issued.
        ranks: how many took part; other groups of as many did the same.
        size_bytes: its whole tensor.
        begin_ns: of each repetition, when the device had finished what came before.
        end_ns: when the device could go on.
    """

    kind: str
    way: str
    ranks: int
    size_bytes: int
    begin_ns: list[int]
    end_ns: list[int]


@dataclass(frozen=True)
class Alone:
    """A collective and its time, as ``calibrate`` takes them.

    ``shorter_ns``: the shorter time, if it has two.
    """

    program: OneCollective
    measured_ns: float
    shorter_ns: float | None = None


def shorten_burst(interface: str, rate_bps: int) -> None:
    """Let less pass at once after a pause than the launcher does (256 KiB).

    It would hide whole messages. Segments become smaller, too, so that the limiter need not cut
    them.

    Raises:
        JobFailed: the link cannot be changed.
    """
    link = f"ip link set dev {interface} gso_max_size {_LARGEST_SEGMENT}"
    queue = (
        f"tc qdisc change dev {interface} root tbf rate {rate_bps}bit burst {_BURST} "
        f"latency {_LATENCY}"
    )
    for command in (link, queue):
        program, *arguments = command.split()
        path = shutil.which(program)
        if path is None:
            raise JobFailed(f"{program}: there is no such program: install iproute2")
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise JobFailed(f"{command}: {done.stderr.strip()}")


def measure_links(hurry: Callable[[], None]) -> list[Measured]:
    """Measure the collectives of all ranks, and of pairs of neighbours; every rank calls this.

    ``hurry``: gives gloo's threads their priority. Groups begin theirs when they are made.
    """
    ranks = dist.get_world_size()
    meshes = [init_device_mesh("cpu", (ranks,))]
    if ranks > 2 and ranks % 2 == 0:
        meshes.append(init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("", "pair"))["pair"])
    everyone = dist.new_group()
    dist.barrier()
    hurry()
    device = Device()
    found = []
    for mesh in meshes:
        for size_bytes in _SIZES:
            for kind, way, run in _collectives(size_bytes // 4, mesh):
                times = [_once(device, pause, run) for pause in (0, *_PAUSES_MS * _ROUNDS)][1:]
                begins, ends = (list(each) for each in zip(*times, strict=True))
                found.append(Measured(kind.value, way, mesh.size(), size_bytes, begins, ends))
    return found + _beside(meshes[-1], everyone, device)


def _beside(mesh: DeviceMesh, everyone: Any, device: Device) -> list[Measured]:
    """All-reduces while another one of all ranks is under way."""
    other = torch.zeros(_BESIDE_BYTES // 4)
    found = []
    for size_bytes in _QUEUED_BYTES:
        own = torch.zeros(size_bytes // 4)
        times = []
        for _ in range(_QUEUED_ROUNDS):
            dist.barrier()
            work = dist.all_reduce(other, group=everyone, async_op=True)
            time.sleep(_BEGUN_S)
            begin_ns = device.restart()
            dist.all_reduce(own, group=mesh.get_group())
            times.append((begin_ns, time.monotonic_ns()))
            assert work is not None
            assert not work.is_completed()
            work.wait()
        begins, ends = (list(each) for each in zip(*times, strict=True))
        found.append(Measured(_BESIDE, "torch.distributed", mesh.size(), size_bytes, begins, ends))
    return found


def _once(device: Device, pause_ms: int, run: Callable[[], Any]) -> tuple[int, int]:
    """When the device had finished before a collective, and when it could go on after it."""
    dist.barrier()
    pause_ns = 1_000_000 * pause_ms
    begin_ns = device.restart() + pause_ns
    device.run(pause_ns)
    with Watch({}, device, {}):
        run()
        device.run(0)
    return begin_ns, device.finish()


def _collectives(
    elements: int, mesh: DeviceMesh
) -> Iterable[tuple[CollectiveKind, str, Callable[[], Any]]]:
    """All collectives of one size: kind, way, and what issues and waits for it."""
    group, ranks = mesh.get_group(), mesh.size()
    part = torch.zeros(elements // ranks)
    whole = torch.zeros(part.numel() * ranks)
    gathered, kept = torch.zeros_like(whole), torch.zeros_like(part)
    ways: tuple[tuple[CollectiveKind, Tensor, Placement, Placement, Callable[[], Any]], ...] = (
        (
            CollectiveKind.ALL_REDUCE,
            whole,
            Partial(),
            Replicate(),
            lambda: dist.all_reduce(whole, group=group, async_op=True),
        ),
        (
            CollectiveKind.ALL_GATHER,
            part,
            Shard(0),
            Replicate(),
            lambda: dist.all_gather_single(gathered, part, group=group, async_op=True),
        ),
        (
            CollectiveKind.REDUCE_SCATTER,
            whole,
            Partial(),
            Shard(0),
            lambda: dist.reduce_scatter_single(kept, whole, group=group, async_op=True),
        ),
    )
    for kind, given, source, target, begin in ways:

        def redistribute(given: Tensor = given, source: Any = source, target: Any = target) -> None:
            distributed = DTensor.from_local(given, mesh, [source], run_check=False)
            made = distributed.redistribute(placements=[target]).to_local()
            if isinstance(made, AsyncCollectiveTensor):
                made.trigger_wait()  # type: ignore[no-untyped-call]

        yield kind, "DTensor", redistribute
        yield kind, "torch.distributed", lambda begin=begin: begin().wait()  # type: ignore[misc]

    def message() -> None:
        if mesh.get_local_rank() == 0:
            work = dist.isend(whole, group=group, group_dst=1)
        else:
            work = dist.irecv(gathered, group=group, group_src=0)
        assert work is not None
        work.wait()

    if ranks == 2:
        yield CollectiveKind.SEND, "torch.distributed", message


def times_of(measured: Sequence[Sequence[Measured]]) -> list[Alone]:
    """The time of each kind, size and number of ranks; the ways of issuing it count the same.

    ``measured``: of each rank of a job, in the same order; several jobs one after the other.
    """
    found: dict[OneCollective, list[tuple[float, float]]] = defaultdict(list)
    for same in measured:
        kind, _, ranks, size_bytes = same[0][:4]
        if kind == _BESIDE:
            continue
        one = OneCollective(CollectiveKind(kind), ranks, size_bytes)
        for took_ns in _took_ns(same):
            found[one].append((float(np.quantile(took_ns, _QUANTILE)), float(np.mean(took_ns))))
    alone = []
    for one, times_ns in found.items():
        quantile_ns, mean_ns = (float(each) for each in np.mean(times_ns, axis=0))
        two = one.kind is CollectiveKind.ALL_GATHER and one.ranks == 2
        alone.append(Alone(one, mean_ns, quantile_ns) if two else Alone(one, quantile_ns))
    return alone


def _took_ns(same: Sequence[Measured]) -> Iterable[Any]:
    """How long a collective took in each of its groups, shape (repetitions,)."""
    for first in range(0, len(same), same[0].ranks):
        group = same[first : first + same[0].ranks]
        begin_ns = np.array([one.begin_ns for one in group]).max(axis=0)
        yield np.array([one.end_ns for one in group]).max(axis=0) - begin_ns


def queue_ns_of(measured: Sequence[Sequence[Measured]]) -> int:
    """How long what is sent waits in the queue of a busy link; ``measured``: as ``times_of``."""
    alone = {one.program: one.measured_ns for one in times_of(measured)}
    found = []
    for same in (one for one in measured if one[0].kind == _BESIDE):
        one = OneCollective(CollectiveKind.ALL_REDUCE, same[0].ranks, same[0].size_bytes)
        found += [np.median(took_ns) - 2 * alone[one] for took_ns in _took_ns(same)]
    return max(0, round(float(np.mean(found)) / _ALL_REDUCE_PASSES)) if found else 0


def fitted(times: Iterable[Alone]) -> list[Alone]:
    """Those that constants are fitted on, with the times that they are fitted on."""
    return [
        one if one.shorter_ns is None else Alone(one.program, one.shorter_ns)
        for one in times
        if one.program.size_bytes >= _LEAST_FITTED_BYTES
    ]
