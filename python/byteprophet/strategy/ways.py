"""How each parameter becomes the same on all ranks under a strategy, as one line of text.

``byteprophet strategy show`` prints these lines, and ``diff`` those that differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from byteprophet.job import Model, Strategy
from byteprophet.job.compression import ELEMENT_BYTES, Compressor, PowerSgd
from byteprophet.job.compression_file import text_of
from byteprophet.job.routes import MESH, SERVERS, bytes_of, carried, parts_of
from byteprophet.job.strategy import BYTEPS, MIXED, Delay
from byteprophet.job.strategy_file import Used

_OVER = {SERVERS: "to servers", MESH: "over the mesh"}


@dataclass(frozen=True)
class Difference:
    """``what``: a parameter, or a member of the strategy. "" stands for nothing."""

    what: str
    first: str
    second: str


def facts(used: Used) -> dict[str, str]:
    """What holds for all parameters, by the names of the file's members."""
    strategy, policy = used.strategy, used.policy
    found = {"runtime": strategy.runtime}
    if policy is not None:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(policy.settings.items()))
        found["policy"] = f"{policy.name} ({settings})" if settings else policy.name
        found["partition_bytes"] = str(strategy.partition_bytes)
    if strategy.routes:
        found["mesh"] = strategy.mesh
        if strategy.mesh_bps:
            found["mesh_bps"] = f"{strategy.mesh_bps} while servers have gradients"
        served_bytes = sum(bytes_of(used.model, strategy.routes, SERVERS))
        cut = sum(route.is_cut for route in strategy.routes)
        share = served_bytes / used.model.size_bytes
        found["routes"] = f"{share:.1%} of the bytes to servers, {cut} gradients cut"
    if used.servers:
        found["servers"] = str(used.servers)
    if strategy.buckets:
        found["buckets"] = str(len(strategy.buckets))
    if strategy.owners:
        found["owners"] = ", ".join(map(str, strategy.owners))
    if strategy.regions:
        regions = (f"{'+'.join(each.modules)} {each.mode()}" for each in strategy.regions)
        found["regions"] = "; ".join(regions)
    if strategy.autocast:
        found["autocast"] = "bf16"
    if strategy.reduce_dtype:
        found["reduce_dtype"] = strategy.reduce_dtype
    if strategy.reduce_fixed:
        found["reduce_fixed"] = strategy.reduce_fixed
    if strategy.accumulation > 1:
        found["accumulation"] = str(strategy.accumulation)
    if strategy.compressors:
        sizes = zip(used.model.names, used.model.sizes_bytes, strict=True)
        compressed = strategy.compressor_of
        share = sum(size for name, size in sizes if name in compressed) / used.model.size_bytes
        found["compressors"] = f"{len(compressed)} gradients, {share:.1%} of the bytes"
    if strategy.local_sgd:
        found["local_sgd"] = f"parameters are averaged after every {strategy.local_sgd} steps"
    if strategy.staleness:
        found["staleness"] = f"{len(strategy.staleness)} of {len(used.model)} parameters"
    if strategy.fixed:
        found["fixed"] = strategy.fixed
    if not strategy.shardable:
        found["shardable"] = "no: every worker updates all of a parameter"
    return found


def ways(used: Used) -> dict[str, str]:
    """The way of each parameter, by its name, in the order of the forward pass."""
    model, strategy = used.model, used.strategy
    if strategy.runtime == BYTEPS:
        how = _served(strategy, model.names)
        for each in strategy.staleness:
            how[each.parameter] += _late(each)
        return how
    if strategy.runtime == MIXED:
        return _routed(used)
    how = _bucketed(strategy, model) | _compressed(strategy, model)
    for each in strategy.staleness:
        how[each.parameter] += _late(each)
    return {name: how.get(name, "not exchanged") for name in model.names}


def _served(strategy: Strategy, names: Iterable[str]) -> dict[str, str]:
    keys = {each.tensor: each for each in strategy.keys}
    found = {}
    for name in names:
        own = keys.get(name)
        size_bytes = strategy.partition_bytes
        servers = "by hash"
        if own is not None:
            size_bytes = own.partition_bytes or size_bytes
            servers = ", ".join(map(str, own.servers)) or servers
        found[name] = f"partitions of {size_bytes} bytes, servers {servers}"
    return found


def _bucketed(strategy: Strategy, model: Model) -> dict[str, str]:
    sizes = dict(zip(model.names, model.sizes_bytes, strict=True))
    bucketed = {}
    for bucket in strategy.buckets:
        size_bytes = sum(sizes[name] for name in bucket.parameters)
        count = len(bucket.parameters)
        held = f"{count} parameters" if count > 1 else "1 parameter"
        place = f"reduced {_th(bucket.reduce_place)}, gathered {_th(bucket.gather_place)}"
        kind = "updated by its owners" if bucket.sharded else "updated by all"
        text = f"bucket of {held}, {size_bytes} bytes, {place}, {kind}"
        bucketed.update(dict.fromkeys(bucket.parameters, text))
    return bucketed


def _compressed(strategy: Strategy, model: Model) -> dict[str, str]:
    sizes = dict(zip(model.names, model.sizes_bytes, strict=True))
    return {
        name: f"{text_of(own)}: {_form_text(own, sizes[name])}, updated by all"
        for name, own in strategy.compressor_of.items()
    }


def _form_text(compressor: Compressor, size_bytes: int) -> str:
    """What a rank sends of a gradient of so many bytes."""
    if isinstance(compressor, PowerSgd):  # a strategy does not know shapes
        each = compressor.rank * ELEMENT_BYTES
        return f"{each} bytes per row and per column all-reduced"
    form = compressor.form((size_bytes // ELEMENT_BYTES,))
    return f"{form.size_bytes} bytes {'all-gathered' if form.gathered else 'all-reduced'}"


def _routed(used: Used) -> dict[str, str]:
    """Where each parameter goes, and how; of a cut one, where each of its pieces goes."""
    model, strategy = used.model, used.strategy
    served = carried(model, strategy.routes, SERVERS).names
    how = _served(strategy, served) | _bucketed(strategy, carried(model, strategy.routes, MESH))
    found: dict[str, str] = {}
    for part in parts_of(strategy.routes):
        text = f"{_OVER[part.way]}: {how[part.name]}"
        if part.name != part.tensor:
            text = f"{part.size_bytes} bytes {text}"
        before = found.get(part.tensor)
        found[part.tensor] = text if before is None else f"{before}; {text}"
    return found


def differences(first: Used, second: Used) -> list[Difference]:
    """What differs, the members of the whole strategy before those of single parameters."""
    found = []
    for describe in (facts, _details, _sizes, _layers, ways):
        mine, other = describe(first), describe(second)
        names = [*mine, *(name for name in other if name not in mine)]
        found += [
            Difference(name, mine.get(name, ""), other.get(name, ""))
            for name in names
            if mine.get(name) != other.get(name)
        ]
    if not found and first.digest != second.digest:
        found.append(Difference("digest", first.digest, second.digest))
    return found


def _details(used: Used) -> dict[str, str]:
    """What ``facts`` leaves out, because only a comparison needs it."""
    size_bytes = used.strategy.bucket_bytes
    return {
        "bucket_bytes": str(size_bytes) if size_bytes else "",
        "order of parameters": ", ".join(used.model.names),
    }


def _layers(used: Used) -> dict[str, str]:
    return {f"layer of {each.name}": each.layer for each in used.model.parameters}


def _sizes(used: Used) -> dict[str, str]:
    sizes = zip(used.model.names, used.model.sizes_bytes, strict=True)
    return {name: f"{size_bytes} bytes" for name, size_bytes in sizes}


def _late(delay: Delay) -> str:
    return f", averages delayed by {delay.steps} step{'s' if delay.steps > 1 else ''}"


def _th(place: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if place % 100 in (11, 12, 13) else ending}"
