"""Makes the synchroniser of a job with two transports, and joins both.

Its workers have the variables of BytePS' roles and those of torchrun's ranks, with the same number.
BytePS was joined before; this joins torch.distributed, unless the script has done so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from byteps.torch import ops
from torch import distributed

from byteprophet.errors import UserError
from byteprophet.job.owners import Owners
from byteprophet.job.strategy import Strategy
from byteprophet.job.strategy_file import Used
from byteprophet.torch.sync import among_ranks, compressed
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.sync.bucketing import PLANNED
from byteprophet.torch.sync.byteps_synchroniser import BytePSSynchroniser, process_synchroniser
from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
from byteprophet.torch.sync.mesh_exchange import MeshExchange
from byteprophet.torch.sync.own_keys import OwnKeys
from byteprophet.torch.sync.pacing import Pacing
from byteprophet.torch.sync.process_exchange import SOCKETS, process_exchange, transport_for
from byteprophet.torch.sync.routing_synchroniser import RoutingSynchroniser
from byteprophet.torch.sync.setup import Setup
from byteprophet.torch.sync.synchroniser import Synchroniser


def make_routed(
    used: Used,
    path: str,
    shardable: bool,
    timeout_s: float,
    options: Mapping[str, object],
    device_type: str,
    fusion_bytes: int,
    changes: Strategy,
) -> Synchroniser:
    """Make a synchroniser that routes gradients as the strategy ``used`` in ``path`` says.

    ``make_synchroniser`` describes the other arguments. All ranks must call this. Raises
    ``UserError`` if this job cannot have two transports.
    """
    strategy = used.strategy
    base = process_synchroniser()
    if isinstance(base, Alone):
        return base
    _check(path, device_type)
    among_ranks.join()
    _check_ranks(path, base)
    is_cut = any(route.is_cut for route in strategy.routes)
    exchange = process_exchange(device_type, timeout_s)
    assert isinstance(exchange, MeshExchange)  # _check has refused others
    setup = Setup(
        strategy.mesh,
        shardable and not is_cut,
        PLANNED,  # that is, as the strategy says
        timeout_s,
        options,
        Owners.of(strategy.owners, base.size),
        changes,
    )
    mesh = CollectiveSynchroniser(exchange, setup, records=False)
    keys = OwnKeys(strategy.keys, used.digest, path)
    servers = FusedSynchroniser(
        base, fusion_bytes, timeout_s, compressed.names, base.adopted, keys, messages=mesh
    )
    pacing = Pacing(exchange.limit, strategy.mesh_bps) if strategy.mesh_bps else None
    return RoutingSynchroniser(servers, mesh, used, path, pacing)


def _check(path: str, device_type: str) -> None:
    if device_type != "cpu":
        _refuse(path, f"parameters are on {device_type}, and only those on CPUs")
    if transport_for(device_type) != SOCKETS:
        _refuse(path, "BYTEPROPHET_TRANSPORT asks for collectives, and only sockets of our own")
    if int(ops.local_size()) > 1:
        _refuse(path, "workers have several local ranks, and only workers of one process")


def _refuse(path: str, why: str) -> NoReturn:
    raise UserError(f"{path}: {why} can have a mesh beside servers")


def _check_ranks(path: str, base: BytePSSynchroniser) -> None:
    there, size = distributed.get_rank(), distributed.get_world_size()
    if (base.rank, base.size) != (there, size):
        raise UserError(
            f"{path}: this worker is rank {base.rank} of {base.size} in BytePS, and rank {there} "
            f"of {size} in torch.distributed: both must be the same"
        )
