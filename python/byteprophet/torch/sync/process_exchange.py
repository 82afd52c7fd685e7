"""Chooses the exchange of this process, and connects it to the other ranks."""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from byteprophet._core import Mesh
from byteprophet.allreduce import address
from byteprophet.allreduce.meeting import Meeting
from byteprophet.allreduce.mesh import connected_sockets
from byteprophet.allreduce.pace import Pace
from byteprophet.runtime_settings import STRATEGY_MODEL
from byteprophet.silence import dead_after_s
from byteprophet.torch.sync import failures, leaving
from byteprophet.torch.sync.exchange import Exchange

TRANSPORT_VARIABLE = "BYTEPROPHET_TRANSPORT"
MESH_KEY = "BYTEPROPHET_MESH_KEY"  # by which a launcher gives all ranks a secret
_HEAD_START_S = 3.0  # of those who see silence sooner and know more: heartbeats, the launcher
SOCKETS, COLLECTIVES = "sockets", "collectives"
_made: list[tuple[Store, Exchange]] = []  # one exchange per device type, with its group's store
_NONCE_BYTES = 16


def process_exchange(device_type: str, timeout_s: float) -> Exchange:
    """The exchange with the other ranks of torch.distributed's default group.

    It is for tensors on ``device_type``. It uses collectives if these are on GPUs, or if
    BYTEPROPHET_TRANSPORT says so. The first call connects, and all ranks must make it.
    ``timeout_s`` limits the time to connect, and the time of each collective. Raises ``ValueError``
    if there is no such group, or if the group has no backend for such tensors.
    """
    if not distributed.is_initialized():
        served = os.environ.get(STRATEGY_MODEL)
        if served:
            raise ValueError(
                f"{served}: the strategy is for scripts with servers, and sync= asks for a job "
                "without: leave out sync=, or say in the file how many servers it starts, "
                'e.g. "servers": 1'
            )
        raise ValueError(
            "sync: call torch.distributed.init_process_group() first; it defines the ranks"
        )
    default: Store = distributed.distributed_c10d._get_default_store()
    if _made and _made[0][0] is not default:  # its group was destroyed
        leave_process_exchange()
    for _, exchange in _made:
        if exchange.device_type == device_type:
            return exchange
    if not _made:
        leaving.at_stop(leave_process_exchange)
    _made.append((default, _connected(default, device_type, timeout_s)))
    return _made[-1][1]


def transport_for(device_type: str) -> str:
    """``SOCKETS`` or ``COLLECTIVES``; ``ValueError`` if BYTEPROPHET_TRANSPORT asks for another."""
    on_processors = device_type == "cpu"
    transport = os.environ.get(TRANSPORT_VARIABLE) or (SOCKETS if on_processors else COLLECTIVES)
    if transport not in (SOCKETS, COLLECTIVES):
        raise ValueError(
            f"{TRANSPORT_VARIABLE}={transport!r}: must be {SOCKETS!r} or {COLLECTIVES!r}"
        )
    if transport == SOCKETS and not on_processors:
        raise ValueError(
            f"{TRANSPORT_VARIABLE}={transport!r}: carries no tensors on {device_type}; unset it"
        )
    return transport


def _connected(default: Store, device_type: str, timeout_s: float) -> Exchange:
    transport = transport_for(device_type)
    backends = distributed.get_backend_config()
    if device_type not in (each.partition(":")[0] for each in backends.split(",")):
        raise ValueError(
            f"sync: parameters are on {device_type}, for which the process group has no backend "
            f"(it has {backends}): give init_process_group() another one (backend='gloo' for "
            "processors, 'nccl' for GPUs)"
        )
    rank, size = distributed.get_rank(), distributed.get_world_size()
    # Use fresh keys, because the store may hold the keys of an earlier attempt or job.
    store = PrefixStore(f"byteprophet.{_nonce(device_type, timeout_s)}", default)
    if transport == COLLECTIVES:
        from byteprophet.torch.sync.group_exchange import GroupExchange

        # Use a separate group, so that its collectives need no common order with the script's.
        group = cast(Any, distributed.new_group(timeout=timedelta(seconds=timeout_s)))
        return GroupExchange(group, device_type, store)
    from byteprophet.torch.sync.mesh_exchange import MeshExchange

    meeting = Meeting(store, "mesh", timeout_s)
    with meeting.failure_is_said():
        own = _own_address(default, meeting, rank, size)
        secret = os.environ.get(MESH_KEY, "")
        sockets = connected_sockets(meeting, rank, size, address=own, secret=secret)
        limit_s = dead_after_s(os.environ)
        mesh = Mesh(rank, sockets, vanished_after_s=limit_s + _HEAD_START_S if limit_s else 0.0)
    return MeshExchange(mesh, rank, size, store, Pace(sockets))


def _nonce(device_type: str, timeout_s: float) -> str:
    """A random string that rank 0 draws and broadcasts to the ranks of this process group."""
    drawn = torch.frombuffer(bytearray(secrets.token_bytes(_NONCE_BYTES)), dtype=torch.uint8)
    drawn = drawn.to(device_type)
    work = distributed.broadcast(drawn, 0, async_op=True)
    try:
        work.wait(timedelta(seconds=timeout_s))
        return bytes(drawn.tolist()).hex()
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise failures.of_collective(
            error,
            f"byteprophet: rank 0 did not begin DistributedOptimizer() within {timeout_s:g} s "
            f"(BYTEPROPHET_TIMEOUT_S sets the limit), or cannot be reached: {line}",
        ) from None


def leave_process_exchange() -> None:
    """Close all exchanges. The next call of ``process_exchange`` makes a new one."""
    while _made:
        _made.pop()[1].close()


def _own_address(default: Store, meeting: Meeting, rank: int, size: int) -> str:
    """The address at which the other ranks reach this one."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    towards = _host(default) or os.environ.get("MASTER_ADDR")
    if interface:
        own = address.interface_address(interface.partition(",")[0])
    elif towards:
        own = address.route_address(towards)
    else:
        own = address.named_address()
    return address.reached_by_all(meeting, rank, size, own, chosen=bool(interface))


def _host(store: Store) -> str:
    """The host at which this process reaches ``store``; empty if ``store`` has none."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(getattr(store, "host", ""))
