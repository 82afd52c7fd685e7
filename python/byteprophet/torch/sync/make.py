"""Makes synchronisers by name."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torch import Tensor, distributed

from byteprophet.errors import UserError
from byteprophet.job.owners import Owners, text_of
from byteprophet.job.staleness import NO_DELAYS, steps_by_name
from byteprophet.job.strategy import MIXED, Strategy
from byteprophet.job.strategy_file import Used
from byteprophet.torch.sync.alone import Alone
from byteprophet.torch.sync.bucketing import NEAR_LAYER, PLANNED, TUNED
from byteprophet.torch.sync.setup import Setup
from byteprophet.torch.sync.synchroniser import Synchroniser

SYNCHRONISERS = ("byteps", "allreduce", "dear", "dear-planned")


def make_synchroniser(
    name: str,
    elementwise: bool,
    fusion: int | str,
    timeout_s: float,
    options: Mapping[str, object],
    device_type: str,
    fusion_bytes: int = 0,
    given: Used | None = None,
    path: str = "",
    owners: tuple[int, ...] = (),
    changes: Strategy = Strategy(),  # noqa: B008 (it is frozen)
    sparse: Container[Tensor] = (),
    gives_values: bool = True,
) -> Synchroniser:
    """Make the synchroniser called ``name``.

    Args:
        name: one of ``SYNCHRONISERS``; or "mixed", with a strategy of two transports.
        elementwise: whether a rank may update any shard of a parameter on its own.
        fusion: how buckets are made, as in ``DistributedOptimizer``.
        timeout_s: how long a rank waits for the others at the start, in seconds.
        options: further options that must be equal on all ranks.
        device_type: the device type of the parameters.
        fusion_bytes: with servers, the size of buffers that small gradients share (0: none).
        given: the optimizer's strategy, if it has servers or compresses gradients.
        path: the file of that strategy.
        owners: without servers, how much each rank owns, as weights; none: equally much.
        changes: without servers, how the front changes gradients; it is recorded.
        sparse: without servers, the parameters whose gradients are sparse.
        gives_values: without servers, whether all ranks begin with rank 0's parameters.

    Raises:
        UserError: ``owners`` do not fit the job, or it cannot have two transports.
        ValueError: there is no such synchroniser; the message lists those that exist.
    """
    if name == "byteps":
        if owners:
            raise UserError(f"owners {text_of(owners)}: with servers, ranks own nothing")
        return _make_fused(fusion_bytes, timeout_s, given, path)
    if name == MIXED and given is not None:
        from byteprophet.torch.sync.make_routed import make_routed

        return make_routed(
            given, path, elementwise, timeout_s, options, device_type, fusion_bytes, changes
        )
    if name in SYNCHRONISERS:
        return _make_collective(
            name,
            elementwise,
            fusion,
            timeout_s,
            options,
            device_type,
            owners,
            changes,
            sparse,
            given,
            path,
            gives_values,
        )
    raise ValueError(
        f"sync={name!r}: there is no such synchroniser; have {', '.join(SYNCHRONISERS)}"
    )


def _make_fused(fusion_bytes: int, timeout_s: float, given: Used | None, path: str) -> Synchroniser:
    from byteprophet.torch.sync.byteps_synchroniser import process_synchroniser

    base = process_synchroniser()
    if isinstance(base, Alone):
        return base
    from byteprophet.torch.sync import compressed
    from byteprophet.torch.sync.fused_synchroniser import FusedSynchroniser
    from byteprophet.torch.sync.own_keys import OwnKeys, given_model

    if given is None:
        path, known = given_model()
        keys, delays = OwnKeys(path=path, known=known), NO_DELAYS
    else:
        keys = OwnKeys(given.strategy.keys, given.digest, path, given)
        delays = steps_by_name(given.strategy.staleness)
    return FusedSynchroniser(
        base, fusion_bytes, timeout_s, compressed.names, base.adopted, keys, delays=delays
    )


def _make_collective(
    mode: str,
    shardable: bool,
    fusion: int | str,
    timeout_s: float,
    options: Mapping[str, object],
    device_type: str,
    weights: tuple[int, ...],
    changes: Strategy,
    sparse: Container[Tensor],
    given: Used | None,
    path: str,
    gives_values: bool,
) -> Synchroniser:
    """Make a synchroniser of the ranks of torch.distributed's default group.

    All ranks must call this. Raises ``ValueError`` if there is no such group, or if ``fusion`` is
    neither a rule nor a size, and ``UserError`` if the group has not as many ranks as ``weights``.
    """
    sized = type(fusion) is int and fusion > 0
    if not sized and fusion not in (PLANNED, TUNED, NEAR_LAYER):
        raise ValueError(
            f"fusion={fusion!r}: must be {PLANNED!r}, {TUNED!r}, {NEAR_LAYER!r} or a number of "
            "bytes from 1"
        )
    owners = Owners.equal(1)
    if distributed.is_initialized():
        owners = Owners.of(weights, distributed.get_world_size())
        if len(owners.weights) == 1:
            return Alone()
        _check_transport(owners, device_type)
    from byteprophet.torch.sync.collective_synchroniser import CollectiveSynchroniser
    from byteprophet.torch.sync.process_exchange import process_exchange

    exchange = process_exchange(device_type, timeout_s)
    setup = Setup(mode, shardable, fusion, timeout_s, options, owners, changes, gives_values)
    if given is not None and given.strategy.compressors:
        from byteprophet.torch.sync.compressing_synchroniser import CompressingSynchroniser

        return CompressingSynchroniser(exchange, setup, sparse, given, path)
    if sparse:
        from byteprophet.torch.sync.rows_synchroniser import RowsSynchroniser

        return RowsSynchroniser(exchange, setup, sparse)
    return CollectiveSynchroniser(exchange, setup)


def _check_transport(owners: Owners, device_type: str) -> None:
    """Raises ``UserError`` if ``owners`` are unequal and the transport would make no use of it."""
    from byteprophet.torch.sync.process_exchange import COLLECTIVES, transport_for

    if not owners.are_equal and transport_for(device_type) == COLLECTIVES:
        raise UserError(
            f"owners {text_of(owners.weights)}: the collectives of a process group move equal "
            "shards; unequal ones need tensors on CPUs and the transport 'sockets'"
        )
