"""Files that hold a strategy: how a job's gradients are synchronised.

Rank 0 of a job without servers writes ``strategy.json`` into its run directory whenever its buckets
change; under DistributedDataParallel, it does so in recorded jobs once buckets were rebuilt. So the
file has the last buckets, and the iteration since which they are in use.
``byteprophet run --strategy`` applies such a file to another job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from byteprophet.digests import digest_of
from byteprophet.errors import UserError
from byteprophet.input_files import has_schema, read_json
from byteprophet.job.compression import Compressed
from byteprophet.job.compression_file import compressors_as_json, read_compressors
from byteprophet.job.model import Model, Parameter
from byteprophet.job.owners import check_weights
from byteprophet.job.policy import Policy
from byteprophet.job.predicted import Predicted, read_predicted
from byteprophet.job.routes import MESH, carried, check_mesh_bps
from byteprophet.job.routes_file import check_buckets, names_with_keys, read_mesh, read_routes
from byteprophet.job.staleness import (
    read_staleness,
    steps_by_name,
    with_local_sgd,
    with_staleness,
)
from byteprophet.job.strategy import (
    BF16,
    BYTEPS,
    DDP,
    FP16,
    FSDP2,
    MIXED,
    OURS,
    REDUCE_DTYPES,
    SHARDING,
    WFBP,
    Bucket,
    Delay,
    Keys,
    Region,
    Strategy,
    with_compressed,
)
from byteprophet.schedulers import MAX_PARTITION_BYTES
from byteprophet.whole_files import write_whole

SCHEMA = 1
_RUNTIMES = (BYTEPS, DDP, WFBP, FSDP2, *OURS, MIXED)
_MOST = 1 << 50
_MEMBERS = {
    "schema", "runtime", "since", "bucket_bytes", "parameters", "buckets", "regions", "autocast",
    "fixed", "owners", "reduce_dtype", "reduce_fixed", "shardable", "accumulation", "keys",
    "partition_bytes", "policy", "servers", "routes", "mesh", "mesh_bps", "predicted",
    "compressors", "staleness", "local_sgd",
}  # fmt: skip
_PARAMETER = ("name", "size_bytes", "layer")
_BUCKET = {"parameters", "reduce_place", "gather_place", "sharded"}
_REGION = {"modules", "compiled", "recomputed"}
_KEYS = {"tensor", "partition_bytes", "servers"}
_PREDICTED = {"iteration_ns", "interval_ns", "bound_ns", "gap"}
YAML = (".yaml", ".yml")
"""What the names of strategy files in YAML end with. All others are JSON."""
MOST_ACCUMULATION = 1 << 10
MOST_LOCAL_STEPS = 1 << 10


@dataclass(frozen=True)
class Used:
    """``strategy`` has been in use for ``model`` since iteration ``since``, counted from 1.

    0: it has not been used yet. ``policy``: of a job with servers. ``servers``: how many a script
    that was written for none is to have; 0: those with which it is started. ``predicted``: what its
    builder expected of it.
    """

    model: Model
    strategy: Strategy
    since: int
    policy: Policy | None = None
    servers: int = 0
    predicted: Predicted | None = None

    @property
    def digest(self) -> str:
        """Equal for equal strategies of equal models, whatever was predicted; ranks compare it."""
        alone = replace(self, predicted=None)
        return digest_of(json.dumps(_as_json(alone, since=0)))


def strategy_path(run_directory: Path, optimizer: int = 0) -> Path:
    """The file of the job's first optimizer, whose number is 0, or of another one."""
    return run_directory / ("strategy.json" if optimizer == 0 else f"strategy-{optimizer}.json")


def write_strategy(path: Path, used: Used) -> None:
    """Write the file; readers see all of it or what was there before. By its name, it is YAML.

    Raises ``UserError`` if it would be too large for YAML.
    """
    data = _as_json(used, used.since)
    if path.suffix in YAML:
        from byteprophet.yaml_files import check_size, yaml_text

        text = yaml_text(data)
        check_size(path, text)
        write_whole(path, text)
        return
    write_whole(path, json.dumps(data, indent=1) + "\n")


def _as_json(used: Used, since: int) -> dict[str, Any]:
    strategy, policy = used.strategy, used.policy
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "runtime": strategy.runtime,
        "since": since,
        "bucket_bytes": strategy.bucket_bytes,
        "parameters": [_parameter_as_json(each) for each in used.model.parameters],
        "buckets": [asdict(bucket) for bucket in strategy.buckets],
    }
    if strategy.regions:
        data["regions"] = [asdict(region) for region in strategy.regions]
    if strategy.autocast:
        data["autocast"] = BF16
    if strategy.fixed:
        data["fixed"] = strategy.fixed
    if strategy.owners:
        data["owners"] = list(strategy.owners)
    if strategy.reduce_dtype:
        data["reduce_dtype"] = strategy.reduce_dtype
    if strategy.reduce_fixed:
        data["reduce_fixed"] = strategy.reduce_fixed
    if not strategy.shardable:
        data["shardable"] = False
    if strategy.accumulation > 1:
        data["accumulation"] = strategy.accumulation
    if strategy.compressors:
        data["compressors"] = compressors_as_json(strategy.compressors)
    if strategy.staleness:
        data["staleness"] = steps_by_name(strategy.staleness)
    if strategy.local_sgd:
        data["local_sgd"] = strategy.local_sgd
    if strategy.keys:
        data["keys"] = [asdict(keys) for keys in strategy.keys]
    if strategy.routes:
        data["mesh"] = strategy.mesh
        data["routes"] = [asdict(route) for route in strategy.routes]
    if strategy.mesh_bps:
        data["mesh_bps"] = strategy.mesh_bps
    if policy is not None:
        data["partition_bytes"] = strategy.partition_bytes
        data["policy"] = {"name": policy.name, "settings": dict(sorted(policy.settings.items()))}
    if used.servers:
        data["servers"] = used.servers
    if used.predicted is not None:
        data["predicted"] = used.predicted.as_json()
    return data


def _parameter_as_json(parameter: Parameter) -> dict[str, Any]:
    data = asdict(parameter)
    return data if parameter.frozen else {name: data[name] for name in _PARAMETER}


def with_compressors(used: Used, rules: object) -> Used:
    """The strategy ``used`` with compressors by ``rules``, which a file has as ``compressors``.

    Raises ``ValueError`` if the runtime has none, beside local SGD, or if a rule is wrong.
    """
    strategy = used.strategy
    if strategy.local_sgd:
        raise _beside_local_sgd("compressors")
    compressors = _compressors(rules, used.model, strategy.runtime, strategy.reduce_dtype)
    return replace(used, strategy=with_compressed(strategy, compressors))


def read_strategy(run_directory: Path) -> Used | None:
    """What the job of ``run_directory`` used in the end; None if nobody wrote it down.

    ``UserError`` names the file and the field that is wrong, or says that the job had several
    optimizers.
    """
    path = strategy_path(run_directory)
    if not path.exists():
        return None
    if any(run_directory.glob("strategy-*.json")):
        raise UserError(f"{run_directory}: a job of several optimizers cannot be replayed")
    used = read_strategy_file(path)
    if used.strategy.runtime in (BYTEPS, MIXED):
        raise UserError(
            f"{path}: runtime {used.strategy.runtime!r}: a job without servers was expected"
        )
    return used


def read_strategy_file(path: Path) -> Used:
    """Read the strategy in ``path``; ``UserError`` names the file and the field that is wrong."""
    data = _read(path)
    try:
        return _used(data)
    except (ValueError, UserError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None


def _read(path: Path) -> Any:
    if path.suffix not in YAML:
        return read_json(path, unique=True)
    from byteprophet.yaml_files import read_yaml  # most jobs have no such file

    return read_yaml(path)


def read_given(run_directory: Path) -> Used | None:
    """The strategy that a job with servers was given; None: none.

    Rank 0 records one that changes gradients or has two transports. ``UserError`` names the file
    and the field that is wrong.
    """
    path = strategy_path(run_directory)
    if not path.exists():
        return None
    return read_strategy_file(path)


def able_dtypes(runtime: str) -> tuple[str, ...]:
    """The types in which gradients may travel under ``runtime``.

    BytePS sends bfloat16 as float32. FSDP2 sends gradients as they are. WFBP takes no strategies.
    """
    if runtime in (BYTEPS, MIXED):
        return (FP16,)
    return REDUCE_DTYPES if runtime in (DDP, *OURS) else ()


def may_accumulate(runtime: str) -> bool:
    """Whether a strategy may accumulate gradients under ``runtime``."""
    return runtime in (BYTEPS, MIXED, *OURS)


def is_of_ddp(path: str) -> bool:
    """Whether ``path`` names the strategy of a job of DistributedDataParallel; False if it is "".

    Raises ``UserError`` as ``read_strategy_file`` does.
    """
    return bool(path) and read_strategy_file(Path(path)).strategy.runtime == DDP


def check_servers(path: str, strategy: Strategy, servers: int) -> None:
    """Raise ``UserError`` if the strategy in ``path`` names a server that the job has not."""
    for keys in strategy.keys:
        if max(keys.servers, default=0) >= servers:
            raise UserError(
                f"{path}: it places {keys.tensor!r} on server {max(keys.servers)}, and the job has "
                f"{servers} server(s), numbered from 0"
            )


def _used(data: Any) -> Used:
    used = _of_buckets(data)
    if "compressors" in data:
        used = with_compressors(used, data["compressors"])
    strategy = with_staleness(used.strategy, _delays(data, used.strategy.runtime, used.model))
    strategy = with_local_sgd(strategy, _local_sgd(data, strategy.runtime))
    return replace(used, strategy=strategy)


def _of_buckets(data: Any) -> Used:
    """Without compressors and delays, which take gradients out of buckets, or divide these."""
    if not has_schema(data, SCHEMA):
        raise ValueError(f"schema: must be {SCHEMA}")
    _refuse_unknown(data, _MEMBERS)
    runtime = data.get("runtime")
    if runtime not in _RUNTIMES:
        raise ValueError(f"runtime {str(runtime)[:40]!r}: must be one of {', '.join(_RUNTIMES)}")
    parameters = tuple(
        Parameter(
            _text(row, "parameters", "name"),
            _count(row, "parameters", "size_bytes"),
            _text(row, "parameters", "layer"),
            _flag({"frozen": False, **row}, "parameters", "frozen"),
        )
        for row in _known_rows(data, "parameters", {*_PARAMETER, "frozen"})
    )
    if runtime != FSDP2 and any(each.frozen for each in parameters):
        raise ValueError(f"parameters: one is frozen, and only {FSDP2!r} has any such")
    least = 0 if runtime == BYTEPS or "compressors" in data else 1
    buckets = tuple(
        Bucket(
            tuple(_texts(row, "buckets", "parameters")),
            _count(row, "buckets", "reduce_place"),
            _count(row, "buckets", "gather_place"),
            _flag(row, "buckets", "sharded"),
        )
        for row in _known_rows(data, "buckets", _BUCKET, least)
    )
    model = Model(parameters)
    if len(set(model.names)) != len(model):
        raise ValueError("parameters: a name occurs twice")
    mixed = runtime == MIXED
    if not mixed and data.keys() & {"routes", "mesh", "mesh_bps"}:
        raise ValueError(f"routes, mesh and mesh_bps: only {MIXED!r} has any")
    routes = read_routes(data.get("routes"), model) if mixed else ()
    mesh = read_mesh(data.get("mesh")) if mixed else ""
    known = set(carried(model, routes, MESH).names if mixed else model.names)
    bucketed = [name for bucket in buckets for name in bucket.parameters]
    if len(set(bucketed)) != len(bucketed) or not set(bucketed) <= known:
        what = "what goes over the mesh" if mixed else "every parameter"
        raise ValueError(f"buckets: must name {what} at most once, and no others")
    if mixed:
        check_buckets(model, routes, mesh, buckets)
    since = _count(data, "strategy", "since")
    bucket_bytes = _count({"bucket_bytes": 0, **data}, "strategy", "bucket_bytes")
    regions = tuple(_region(row) for row in _known_rows(data, "regions", _REGION, 0))
    modules = [path for region in regions for path in region.modules]
    if len(set(modules)) != len(modules):
        raise ValueError("regions: a module occurs twice")
    if data.get("autocast", BF16) != BF16:
        raise ValueError(f"autocast: must be {BF16!r}, or left out")
    autocast = "autocast" in data
    owners = _owners(data, runtime)
    reduce_dtype, accumulation = _reduce_dtype(data, runtime), _accumulation(data, runtime)
    reduce_fixed = _text({"reduce_fixed": "", **data}, "strategy", "reduce_fixed")
    keys = tuple(_keys(row) for row in _known_rows(data, "keys", _KEYS, 0))
    named = [each.tensor for each in keys]
    may_have = names_with_keys(model, routes) if mixed else set(model.names)
    if len(set(named)) != len(named) or not set(named) <= may_have:
        what = "what goes to servers" if mixed else "a parameter"
        raise ValueError(f"keys: must name {what} at most once, and no others")
    if runtime == FSDP2:
        if regions or "autocast" in data:
            raise ValueError(f"regions and autocast: {runtime!r} has none")
        if not all(bucket.sharded for bucket in buckets):
            raise ValueError(f"buckets: under {runtime!r}, every one is sharded")
    if runtime not in (BYTEPS, MIXED):
        if keys:
            raise ValueError("keys: only a job with servers has any")
        served = min(data.keys() & {"policy", "servers", "partition_bytes"}, default=None)
        if served is not None:
            raise ValueError(f"{served}: only a job with servers has any")
        fixed = _text({"fixed": "", **data}, "strategy", "fixed")
        shardable = _flag({"shardable": True, **data}, "strategy", "shardable")
        if not shardable and any(bucket.sharded for bucket in buckets):
            raise ValueError("shardable: is false, and a bucket is sharded")
        if runtime not in SHARDING and any(bucket.sharded for bucket in buckets):
            raise ValueError(f"buckets: one is sharded, and {runtime!r} shards none")
        strategy = Strategy(
            runtime,
            buckets,
            bucket_bytes,
            regions=regions,
            autocast=autocast,
            fixed=fixed,
            owners=owners,
            reduce_dtype=reduce_dtype,
            reduce_fixed=reduce_fixed,
            shardable=shardable,
            accumulation=accumulation,
        )
        return Used(model, strategy, since, predicted=_predicted(data))
    if "shardable" in data:
        raise ValueError("shardable: a job with servers has none")
    if buckets and not mixed:
        raise ValueError("buckets: a job with servers has none")
    partition_bytes = _count(data, "strategy", "partition_bytes")
    mesh_bps = _count({"mesh_bps": 0, **data}, "strategy", "mesh_bps")
    check_mesh_bps(model, routes, mesh_bps)
    strategy = Strategy(
        runtime,
        buckets,
        bucket_bytes,
        partition_bytes=partition_bytes,
        keys=keys,
        regions=regions,
        autocast=autocast,
        owners=owners,
        reduce_dtype=reduce_dtype,
        reduce_fixed=reduce_fixed,
        accumulation=accumulation,
        routes=routes,
        mesh=mesh,
        mesh_bps=mesh_bps,
    )
    servers = _count({"servers": 0, **data}, "strategy", "servers")
    return Used(model, strategy, since, _policy(data), servers, _predicted(data))


def _owners(data: dict[str, Any], runtime: str) -> tuple[int, ...]:
    owners = data.get("owners", [])
    if not isinstance(owners, list):
        raise ValueError("owners: must be a list of weights, one for each rank")
    if owners and runtime not in (*OURS, MIXED):
        raise ValueError(f"owners: {runtime!r} has none; {', '.join(OURS)} have")
    check_weights(tuple(owners))
    return tuple(owners)


def _reduce_dtype(data: dict[str, Any], runtime: str) -> str:
    if "reduce_dtype" not in data:
        return ""
    able = able_dtypes(runtime)
    if data["reduce_dtype"] not in able:
        choice = f"must be one of {', '.join(able)}, or left out" if able else "must be left out"
        raise ValueError(
            f"reduce_dtype {str(data['reduce_dtype'])[:40]!r}: under {runtime!r} it {choice}"
        )
    return str(data["reduce_dtype"])


def _accumulation(data: dict[str, Any], runtime: str) -> int:
    steps = data.get("accumulation", 1)
    if type(steps) is not int or not 1 <= steps <= MOST_ACCUMULATION:
        raise ValueError(f"accumulation: must be an integer from 1 to {MOST_ACCUMULATION}")
    if steps > 1 and not may_accumulate(runtime):
        able = ", ".join(each for each in _RUNTIMES if may_accumulate(each))
        raise ValueError(f"accumulation: {runtime!r} has none; {able} have")
    return steps


def _compressors(
    rules: object, model: Model, runtime: str, reduce_dtype: str
) -> tuple[Compressed, ...]:
    if runtime not in OURS:
        why = ", because servers add up what is pushed" if runtime in (BYTEPS, MIXED) else ""
        raise ValueError(f"compressors: {runtime!r} has none{why}; {', '.join(OURS)} have")
    if reduce_dtype:
        raise ValueError("compressors and reduce_dtype: a strategy has one of them at most")
    return read_compressors(rules, model)


def _delays(data: dict[str, Any], runtime: str, model: Model) -> tuple[Delay, ...]:
    if "staleness" not in data:
        return ()
    if runtime not in (BYTEPS, *OURS):
        able = ", ".join((BYTEPS, *OURS))
        raise ValueError(f"staleness: {runtime!r} has none; {able} have")
    return read_staleness(data["staleness"], model)


def _local_sgd(data: dict[str, Any], runtime: str) -> int:
    if "local_sgd" not in data:
        return 0
    steps = data["local_sgd"]
    if type(steps) is not int or not 2 <= steps <= MOST_LOCAL_STEPS:
        raise ValueError(f"local_sgd: must be an integer from 2 to {MOST_LOCAL_STEPS}")
    if runtime not in OURS:
        able = ", ".join(OURS)
        raise ValueError(f"local_sgd: {runtime!r} has none; {able} have")
    for other in ("reduce_dtype", "accumulation", "compressors", "staleness"):
        if other in data:
            raise _beside_local_sgd(other)
    return steps


def _beside_local_sgd(other: str) -> ValueError:
    return ValueError(f"local_sgd: it averages no gradients, so {other} must be left out")


def _keys(row: dict[str, Any]) -> Keys:
    servers = row.get("servers")
    if not isinstance(servers, list):
        raise ValueError("keys: servers must be a list of numbers")
    numbers = tuple(_count({"servers": one}, "keys", "servers") for one in servers)
    size_bytes = _count(row, "keys", "partition_bytes")
    if size_bytes > MAX_PARTITION_BYTES:
        raise ValueError(f"keys: partition_bytes must be at most {MAX_PARTITION_BYTES}")
    return Keys(_text(row, "keys", "tensor"), size_bytes, numbers)


def _region(row: dict[str, Any]) -> Region:
    compiled, recomputed = (_flag(row, "regions", name) for name in ("compiled", "recomputed"))
    return Region(tuple(_texts(row, "regions", "modules")), compiled, recomputed)


def _policy(data: dict[str, Any]) -> Policy:
    policy = data.get("policy")
    settings = policy.get("settings") if isinstance(policy, dict) else None
    if not isinstance(policy, dict) or not isinstance(settings, dict):
        raise ValueError("policy: must be a table with a name and settings")
    _refuse_unknown(policy, {"name", "settings"}, "policy: ")
    counts = {name: _count(settings, "policy: settings", name) for name in settings}
    return Policy(_text(policy, "policy", "name"), counts)


def _predicted(data: dict[str, Any]) -> Predicted | None:
    row = data.get("predicted")
    if isinstance(row, dict):
        _refuse_unknown(row, _PREDICTED, "predicted: ")
    return read_predicted(row)


def _rows(data: dict[str, Any], name: str, least: int = 1) -> list[dict[str, Any]]:
    rows = data.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name}: must be a list of tables")
    if len(rows) < least:
        raise ValueError(f"{name}: there must be one at least")
    return rows


def _known_rows(
    data: dict[str, Any], name: str, members: set[str], least: int = 1
) -> list[dict[str, Any]]:
    rows = _rows(data, name, least)
    for row in rows:
        _refuse_unknown(row, members, f"{name}: ")
    return rows


def _refuse_unknown(row: dict[str, Any], members: set[str], where: str = "") -> None:
    """What a later version wrote must not be left out in silence."""
    unknown = min(row.keys() - members, default=None)
    if unknown is not None:
        raise ValueError(f"{where}{unknown[:40]}: this version knows no such member")


def _flag(row: dict[str, Any], where: str, name: str) -> bool:
    value = row.get(name)
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {name} must be true or false")
    return value


def _text(row: dict[str, Any], where: str, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {name} must be text")
    return value


def _count(row: dict[str, Any], where: str, name: str) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{where}: {name} must be an integer from 0 to 2^50")
    return value


def _texts(row: dict[str, Any], where: str, name: str) -> list[str]:
    texts = row.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where}: {name} must be a list of names, at least one")
    return texts
