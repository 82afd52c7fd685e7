"""Checkpoints of a sharded model and of its optimizer: whole values, under the names of before.

``state_dict()`` of the model, of a part of it and of the optimizer returns what a single process
would: all ranks must call it, because each one gathers the shards of the others. A rank that does
not is named. Every rank can load the result without the others, and takes its shard.

Threads: the training thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from byteprophet.torch.fsdp2.model import ShardedModel
from byteprophet.torch.sync import saver
from byteprophet.torch.sync.completion import STATE_DICT, Call

_MODEL = Call("called state_dict() of the model")


def _whole(value: Any) -> Any:
    return value.full_tensor().detach() if isinstance(value, DTensor) else value


def _own(value: Any) -> Any:
    return value.to_local().detach().clone() if isinstance(value, DTensor) else value


def _sharded(value: Tensor, like: DTensor) -> DTensor:
    """The shard of ``value``, a whole tensor, that this rank has of ``like``."""
    shards = torch.chunk(value.detach(), like.device_mesh.size(), dim=0)
    rank = like.device_mesh.get_local_rank()
    mine = shards[rank] if rank < len(shards) else value.detach()[:0]
    return _of_shard(mine.clone(), like)


def _of_shard(mine: Tensor, like: DTensor) -> DTensor:
    return DTensor.from_local(
        mine, like.device_mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )


class ModelCheckpoints:
    """Lets ``state_dict()`` of the model's modules return whole values, and take them again."""

    def __init__(self, sharded: ShardedModel) -> None:
        self._sharded = sharded
        self._outermost: nn.Module | None = None  # of the modules whose state is being saved
        modules: list[Any] = list(sharded.model.modules())
        for module in modules:
            module.register_state_dict_pre_hook(self._before_save)
            # Torch notes on this hook how it was registered, which a bound method does not allow.
            module.register_state_dict_post_hook(functools.partial(self._after_save))
            module.register_load_state_dict_pre_hook(self._before_load)

    def _before_save(self, module: nn.Module, _prefix: str, _keep_vars: bool) -> None:
        if self._outermost is None or module is self._sharded.model:
            self._sharded.reshard()
            self._outermost = module

    def _after_save(
        self, module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        if module is not self._outermost:
            return
        self._outermost = None
        self._sharded.group.meet(_MODEL)
        for name in state:
            if name.startswith(prefix) and not isinstance(state[name], nn.Parameter):
                state[name] = _whole(state[name])

    def _before_load(
        self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, *_: Any
    ) -> None:
        self._sharded.reshard()
        if metadata.get("assign_to_params_buffers"):
            raise RuntimeError(
                "byteprophet: sync='fsdp2': load_state_dict(assign=True) would replace sharded "
                "parameters: load without assign=True"
            )
        for name, own in module._parameters.items():
            value = state.get(prefix + name)
            if isinstance(own, DTensor) and _is_whole(value, own):
                state[prefix + name] = _sharded(value, own)


def _is_whole(value: Any, like: DTensor) -> bool:
    is_plain = isinstance(value, Tensor) and not isinstance(value, DTensor)
    return is_plain and value.shape == like.shape


class OptimizerCheckpoints:
    """Lets ``state_dict()`` of ``optimizer`` return whole values, and take them again."""

    def __init__(self, optimizer: Optimizer, sharded: ShardedModel) -> None:
        self._optimizer = optimizer
        self._sharded = sharded
        self._own = False  # this rank's shards are saved or loaded
        optimizer.register_state_dict_post_hook(self._after_save)
        optimizer.register_load_state_dict_pre_hook(self._before_load)

    def sharded_state_dict(self) -> dict[str, Any]:
        """The state with this rank's shards alone, and who saved it. Other ranks take no part."""
        group = self._sharded.group
        self._own = True
        try:
            state = self._optimizer.state_dict()
        finally:
            self._own = False
        return {**state, saver.KEY: saver.named(group.rank, group.size)}

    def load_sharded_state_dict(self, state: dict[str, Any]) -> None:
        """Load what the same rank of a job of the same size has saved.

        Raises ``ValueError`` if another rank saved it, or a job of another size, or if a tensor is
        not as large as this rank's shard.
        """
        group = self._sharded.group
        saver.refuse_other(
            state.get(saver.KEY, {}), group.rank, group.size, "load_sharded_state_dict()"
        )
        self._own = True
        try:
            self._optimizer.load_state_dict(state)
        finally:
            self._own = False

    def _after_save(self, _optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if not self._own:
            self._sharded.group.meet(STATE_DICT)
        return _changed(state, lambda _number, _name, value: (_own if self._own else _whole)(value))

    def _before_load(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if not self._own:
            saver.refuse_shards(state)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        known = dict(zip(numbers, parameters, strict=False))

        def sharded(number: Any, name: str, value: Any) -> Any:
            parameter = known.get(number)
            if not isinstance(parameter, DTensor) or not isinstance(value, Tensor):
                return value
            if isinstance(value, DTensor) or not value.dim():  # counters have no dimension
                return value
            if not self._own:
                return _sharded(value, parameter) if _is_whole(value, parameter) else value
            shape = parameter.to_local().shape
            if value.shape != shape:
                raise ValueError(
                    f"load_sharded_state_dict(): {name!r} of parameter {number} is "
                    f"{tuple(value.shape)} where this rank keeps {tuple(shape)}: it was saved by "
                    "another rank, or in a job of another size; use state_dict()"
                )
            return _of_shard(value.clone(), parameter)

        return _changed(state, sharded)


def _changed(state: Mapping[str, Any], change: Callable[[Any, str, Any], Any]) -> dict[str, Any]:
    """``state`` of an optimizer, whose values ``change`` has changed."""
    changed = {
        number: {name: change(number, name, value) for name, value in values.items()}
        if isinstance(values, Mapping)
        else values
        for number, values in state["state"].items()
    }
    return {**state, "state": changed}
