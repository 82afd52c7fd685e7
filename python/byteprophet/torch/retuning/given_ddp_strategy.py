"""Gives DistributedDataParallel the buckets of a strategy file.

It takes a limit for each bucket (``bucket_cap_mb_list``): a bucket is full as soon as it holds so
many bytes. So a bucket's own size as its limit makes it end with exactly its last gradient, if
gradients become ready in the order of the strategy. The first iterations use other buckets, until
they are rebuilt. Then rank 0 checks them, and warns if they differ.

Threads: the training thread calls everything.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from byteprophet.allreduce.strategies import DDP_BUCKET_BYTES, ddp_ends
from byteprophet.errors import UserError, warn
from byteprophet.job.strategy import buckets_without
from byteprophet.job.strategy_file import Used
from byteprophet.runtime_settings import STRATEGY, RuntimeSettings
from byteprophet.torch.recording.ddp_buckets import (
    LIMITS,
    NO_LIMITS,
    InPlace,
    called,
    named_parameters,
    rebuilt_buckets,
    reduced_parameters,
    why_fixed,
    why_not_cast,
)
from byteprophet.torch.recording.ddp_spans import reduce_in
from byteprophet.torch.recording.stopwatch import is_training_forward
from byteprophet.torch.retuning.given_strategy import check_model
from byteprophet.torch.sync import same_start
from byteprophet.torch.sync.completion import Call
from byteprophet.torch.tensors import module_calls

_MADE = Call(
    "made DistributedDataParallel with a strategy", advice=f": is {STRATEGY} set everywhere?"
)
_MIB = 1 << 20
_FORWARDS = 100
"""Forward passes within which buckets should have been rebuilt."""

_models = itertools.count()  # wrapped under a strategy; the same number on all ranks of a group


def construct_with(
    used: Used,
    settings: RuntimeSettings,
    plain: Callable[..., None],
    model: DistributedDataParallel,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> None:
    """Construct ``model`` by ``plain`` with the buckets of ``used``, which ``settings`` names.

    Its runtime is that of DistributedDataParallel. Raises ``UserError`` if it is for another model,
    if the model's buckets cannot be given, or if ranks have other strategies or parameters than
    rank 0.
    """
    path = settings.strategy
    bound = inspect.signature(plain).bind(model, *arguments, **options)
    fixed = used.strategy.fixed
    module: nn.Module = bound.arguments["module"]
    why_not = why_fixed(
        module,
        bound.arguments.get("static_graph", False),
        bound.arguments.get("find_unused_parameters", False),
    )
    reduce_dtype = used.strategy.reduce_dtype
    not_cast = why_not_cast(module) if reduce_dtype else ""
    if not_cast:
        raise UserError(f"{path}: gradients are to travel as {reduce_dtype}, but {not_cast}")
    reduced = {id(each) for each in reduced_parameters(module).values()}
    named = named_parameters(model, module)
    if isinstance(model, InPlace):
        used = _without(used, {name for name, each in named if not each.requires_grad})
    parameters: dict[str, Tensor] = {name: each for name, each in named if id(each) in reduced}
    check_model(path, used, {name: each.nbytes for name, each in parameters.items()})
    limits = {} if fixed else _limits(path, used, why_not)
    mesh = bound.arguments.get("device_mesh")
    group = bound.arguments.get("process_group") if mesh is None else mesh.get_group(mesh_dim=0)
    options = {"strategy": used.digest}
    same_start.check_group(
        path, _start(group), _MADE, [*parameters.items()], options, settings.timeout_s, group
    )
    if not fixed:
        bound.arguments.pop("bucket_cap_mb", None)
        bound.arguments.update(limits)
    plain(*bound.args, **bound.kwargs)
    if reduce_dtype:
        reduce_in(model, reduce_dtype)
    if distributed.get_rank(group) == 0 and not fixed:
        _Check(model, used, path)


def _without(used: Used, frozen: Container[str]) -> Used:
    """``used`` without frozen parameters, which our own exchange carries, and this one does not."""
    buckets = buckets_without(used.strategy.buckets, frozen)
    return replace(used, strategy=replace(used.strategy, buckets=buckets))


def _limits(path: str, used: Used, why_not: str) -> dict[str, Any]:
    """The arguments that give the buckets of ``used``. ``why_not``: what ``why_fixed`` says."""
    if not why_not:
        return {LIMITS: limits_mb(used)}
    one_bytes = used.strategy.bucket_bytes
    if why_not == NO_LIMITS and one_bytes and _follow_from(used, one_bytes):
        return {} if one_bytes == DDP_BUCKET_BYTES else {"bucket_cap_mb": one_bytes / _MIB}
    raise UserError(f"{path}: the buckets of DistributedDataParallel cannot be given: {why_not}")


def limits_mb(used: Used) -> list[float]:
    """Of each bucket, in MiB. A size in bytes divided by a power of two is exact."""
    return [sum(sizes) / _MIB for sizes in _sizes(used)]


def _follow_from(used: Used, bucket_bytes: int) -> bool:
    """Whether the buckets of ``used`` are those of one limit for all."""
    sizes = _sizes(used)
    ends = [*itertools.accumulate(map(len, sizes))]
    return ends == ddp_ends([*itertools.chain(*sizes)], bucket_bytes)


def _sizes(used: Used) -> list[list[int]]:
    """The bytes of each gradient, by bucket, in the order in which they become ready."""
    sizes = dict(zip(used.model.names, used.model.sizes_bytes, strict=True))
    buckets = sorted(used.strategy.buckets, key=lambda bucket: bucket.reduce_place)
    return [[sizes[name] for name in bucket.parameters] for bucket in buckets]


def _start(group: distributed.ProcessGroup | None) -> str:
    ranks = "-".join(map(str, distributed.get_process_group_ranks(group)))
    return f"byteprophet.data_parallel.{next(_models)}.{ranks}"


class _Check:
    """Compares the rebuilt buckets of a model with its strategy, and warns if they differ."""

    def __init__(self, model: DistributedDataParallel, used: Used, path: str) -> None:
        self._model = weakref.ref(model)
        buckets = sorted(used.strategy.buckets, key=lambda bucket: bucket.reduce_place)
        self._wanted = tuple(frozenset(bucket.parameters) for bucket in buckets)
        self._path = path
        self._forwards = 0
        self._end_listening = module_calls.listen(self._before)

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        model = self._model()
        if model is None:
            self._end_listening()
        elif module is called(model) and is_training_forward():
            self._compare(model)

    def _compare(self, model: DistributedDataParallel) -> None:
        self._forwards += 1
        buckets = rebuilt_buckets(model)
        if buckets is None and self._forwards < _FORWARDS:
            return
        self._end_listening()
        if buckets is None:
            warn(f"{self._path}: DistributedDataParallel has not rebuilt its buckets: not in use")
        elif tuple(map(frozenset, buckets)) != self._wanted:
            place = next(
                (
                    place
                    for place, (got, wanted) in enumerate(zip(buckets, self._wanted, strict=False))
                    if frozenset(got) != wanted
                ),
                min(len(buckets), len(self._wanted)),
            )
            warn(
                f"{self._path}: DistributedDataParallel made {len(buckets)} buckets, and the "
                f"strategy has {len(self._wanted)}; bucket {place} is the first that differs: "
                "gradients become ready in another order than in the recorded job"
            )
