"""A recorded job under a strategy from a file, ready to be replayed."""

from __future__ import annotations

from dataclasses import replace

from byteprophet import schedulers
from byteprophet.errors import UserError
from byteprophet.job import Job, Model, Policy
from byteprophet.job.compression import why_shapeless
from byteprophet.job.other_model import other_model
from byteprophet.job.strategy import BYTEPS, MIXED, OURS
from byteprophet.job.strategy_file import Used, check_servers
from byteprophet.replay.all_reduce import with_strategy

_MEASURED = ("regions", "autocast", "reduce_dtype", "accumulation")
"""What a strategy says of the workers' computation. ``byteprophet optimize`` measures its cost."""


def under(job: Job, used: Used, path: str) -> Job:
    """``job`` under the strategy ``used``, which ``path`` names in messages.

    Raises ``UserError`` if the two differ in their transport, if one of them has two, if it cannot
    be predicted, if it is for another model (the first difference is named), if it names a server
    that the job has not, if its policy or a setting is unknown, or if workers would compute
    otherwise than in ``job``.
    """
    strategy, served = used.strategy, job.strategy.runtime == BYTEPS
    if strategy.runtime == MIXED:
        raise UserError(f"{path}: it has two transports, and takes part in no search")
    if job.strategy.runtime == MIXED:
        raise UserError(
            f"{path}: it has one transport, and the job was recorded with two, which share links: "
            "record a job of one transport"
        )
    check_forms(path, used)
    if served != (strategy.runtime == BYTEPS):
        there, here = ("no servers", "servers") if served else ("servers", "no servers")
        raise UserError(
            f"{path}: its runtime {strategy.runtime!r} has {there}, and the recorded job has "
            f"{here}: the links that it would use were not measured"
        )
    moved = replace(job, strategy=replace(job.strategy, runtime=strategy.runtime))
    if moved.transport != job.transport:
        raise UserError(
            f"{path}: its runtime {strategy.runtime!r} has another transport than the recorded "
            f"{job.strategy.runtime!r}, and what its messages cost was not measured"
        )
    check_fits(path, used, job)
    check_computation(path, used, job)
    if served and strategy.staleness:
        raise UserError(f"{path}: averages from servers are delayed: it cannot be predicted")
    if not served:
        return without_other_costs(with_strategy(job, strategy), job)
    return replace(
        job,
        policy=replace(checked_policy(path, used), ready_times=job.push_policy.ready_times),
        strategy=replace(
            job.strategy, partition_bytes=strategy.partition_bytes, keys=strategy.keys
        ),
    )


def checked_policy(path: str, used: Used) -> Policy:
    """The policy of ``used``. Raises ``UserError`` if it has none, or an unknown one or setting."""
    policy = used.policy
    if policy is None:
        raise UserError(f"{path}: a job with servers has a policy, and this strategy has none")
    try:
        schedulers.resolve(policy.name, policy.settings, used.strategy.partition_bytes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return policy


def check_fits(path: str, used: Used, job: Job) -> None:
    """Raise ``UserError`` unless ``job`` could run under ``used``, predictable or not.

    The model, the number of ranks that own parameters, and the servers must be the same.
    """
    difference = first_difference(used.model, job.model)
    if difference:
        raise other_model(path, difference)
    check_owners(path, used, job)
    check_servers(path, used.strategy, job.servers)


def check_compresses(option: str, runtime: str) -> None:
    """Raise ``UserError``, which names ``option``, if ``runtime`` compresses nothing."""
    if runtime not in OURS:
        raise UserError(f"{option}: {runtime} compresses no gradients; {', '.join(OURS)} do")


def check_forms(path: str, used: Used) -> None:
    """Raise ``UserError`` if it is not known how many bytes a compressed gradient travels in."""
    why = why_shapeless(used.strategy.compressor_of)
    if why:
        raise UserError(f"{path}: {why}: such a job cannot be replayed")


def without_other_costs(job: Job, recorded: Job) -> Job:
    """``job`` without recorded costs of compressors that are others in ``recorded``."""
    costs, own, was = job.cluster.costs, job.strategy.compressor_of, recorded.strategy.compressor_of
    left = tuple(
        each
        for each in costs.compressing
        if each.parameter in own and own[each.parameter] == was.get(each.parameter)
    )
    if left == costs.compressing:
        return job
    return replace(job, cluster=replace(job.cluster, costs=replace(costs, compressing=left)))


def check_computation(path: str, used: Used, job: Job) -> None:
    """Raise ``UserError`` if workers would compute otherwise than in the recorded ``job``."""
    for name in _MEASURED:
        if getattr(used.strategy, name) != getattr(job.strategy, name):
            raise UserError(
                f"{path}: {name} differs from the recorded job, and how long its workers "
                "would compute was not measured"
            )


def first_difference(model: Model, recorded: Model) -> str:
    """Where ``model`` differs from the ``recorded`` one; "" if it does not."""
    sizes = dict(zip(recorded.names, recorded.sizes_bytes, strict=True))
    for name, size_bytes in zip(model.names, model.sizes_bytes, strict=True):
        if name not in sizes:
            return f"parameter {name!r} is not in the recorded one"
        if sizes[name] != size_bytes:
            return f"parameter {name!r} has {size_bytes} bytes, and {sizes[name]} in the recorded"
    missing = next((name for name in recorded.names if name not in model.places), None)
    if missing is not None:
        return f"it has no parameter {missing!r}"
    if model.names != recorded.names:
        pairs = zip(model.names, recorded.names, strict=True)
        mine, other = next((mine, other) for mine, other in pairs if mine != other)
        return f"it needs {mine!r} where the recorded one needs {other!r}"
    return ""


def check_owners(path: str, used: Used, job: Job) -> None:
    """Raise ``UserError`` if ``used`` has owners for another number of ranks than ``job``."""
    owners = used.strategy.owners
    if owners and len(owners) != job.workers:
        raise UserError(
            f"{path}: it has owners' weights for {len(owners)} ranks, and the job has {job.workers}"
        )
