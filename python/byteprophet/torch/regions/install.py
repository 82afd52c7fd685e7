"""Lets a model compute as a strategy says: in regions, under autocast.

A region is left out, with a warning, if a hook of the script would see something else than before:
the hooks of a region's modules run around the whole region, or around nothing, and those of what
these consist of would run again where a region is recomputed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from byteprophet.errors import UserError, warn
from byteprophet.job import Model
from byteprophet.job.other_model import other_model, other_size
from byteprophet.job.strategy import Region, Strategy
from byteprophet.job.strategy_file import read_strategy_file
from byteprophet.tensor_names import is_buffer_text
from byteprophet.torch.regions.autocast import with_autocast
from byteprophet.torch.regions.fused import RegionForward, Replaced
from byteprophet.torch.tensors import module_calls

_installed: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def apply(model: nn.Module, strategy: str | os.PathLike[str]) -> None:
    """Let ``model`` compute as the strategy in a file says (docs/formats.md): regions, autocast.

    Parameters, their names and the model's hooks stay as they are. Does nothing if the model has a
    strategy already. Warns of what only an optimizer can carry out. Raises ``UserError`` if the
    file cannot be read or is another model's.
    """
    path = os.fspath(strategy)
    used = read_strategy_file(Path(path))
    wanted = used.strategy
    _check_parameters(model, used.model, path)
    left_out = [what for what, is_wanted in _for_an_optimizer(wanted) if is_wanted]
    if left_out:
        warn(
            f"{path}: byteprophet.torch.apply leaves out its {' and '.join(left_out)}: pass the "
            "strategy to DistributedOptimizer, which applies all of it"
        )
    install(model, wanted, path)


def _for_an_optimizer(strategy: Strategy) -> tuple[tuple[str, bool], ...]:
    return (
        ("keys", bool(strategy.keys)),
        ("owners", bool(strategy.owners)),
        (f"{strategy.reduce_dtype} gradients", bool(strategy.reduce_dtype)),
        ("accumulated steps", strategy.accumulation > 1),
        ("compressed gradients", bool(strategy.compressors)),
        ("delayed averages", bool(strategy.staleness)),
        ("local SGD", bool(strategy.local_sgd)),
    )


def _check_parameters(model: nn.Module, expected: Model, path: str) -> None:
    """Refuse a strategy of another model.

    Several gradients that were recorded in one buffer are one parameter of ``expected``, so only
    the total size of these can be compared.
    """
    sizes_bytes = {name: each.nbytes for name, each in model.named_parameters()}
    alone = {each.name for each in expected.parameters if not is_buffer_text(each.name)}
    shared_bytes = sum(size for name, size in sizes_bytes.items() if name not in alone)
    for parameter in expected.parameters:
        if parameter.name not in alone:
            shared_bytes -= parameter.size_bytes
            if shared_bytes < 0:
                kind = type(model).__name__
                raise other_model(path, f"{parameter.name!r} are not all in {kind}")
            continue
        size_bytes = sizes_bytes.get(parameter.name)
        if size_bytes is None:
            difference = f"there is no parameter {parameter.name!r} in {type(model).__name__}"
        elif size_bytes != parameter.size_bytes:
            difference = other_size(parameter.name, parameter.size_bytes, size_bytes)
        else:
            continue
        raise other_model(path, difference)


def install(
    model: nn.Module, strategy: Strategy, path: str, called: nn.Module | None = None
) -> None:
    """Like ``apply``; ``path`` names the file in messages.

    ``called``: the module that the script calls, if that is another one, which holds ``model``.
    """
    if model in _installed or not strategy.changes_model:
        return
    _install_regions(model, called or model, strategy.regions, path)
    if strategy.autocast:
        _install_autocast(model)
    _installed.add(model)  # a strategy that is refused is none


def _install_autocast(model: nn.Module) -> None:
    plain = model.forward
    cast = with_autocast(plain, [model])

    def forward(*inputs: Any, **named: Any) -> Any:
        trains = model.training and torch.is_grad_enabled()
        return (cast if trains else plain)(*inputs, **named)

    model.forward = Replaced(model, forward)


def _install_regions(
    model: nn.Module, called: nn.Module, regions: Sequence[Region], path: str
) -> None:
    if not regions:
        return
    if any(map(module_calls.is_compiled, called.modules())):
        raise UserError(
            f"{path}: has regions, but the script compiles {type(model).__name__} itself: take "
            "one of the two away"
        )
    modules = dict(model.named_modules())
    for region in regions:
        for name in region.modules:
            if name not in modules:
                raise other_model(path, f"there is no module {name!r} in {type(model).__name__}")
    # Weakly: a region holds its modules, and one of them may be the model itself.
    running = [
        weakref.ref(_run(region, [modules[name] for name in region.modules]))
        for region in regions
        if not _is_hooked(region, modules)
    ]
    top = weakref.ref(model)

    def after(module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module is top():
            for ref in running:
                if (region := ref()) is not None:
                    region.end_pass()

    weakref.finalize(model, module_calls.listen(lambda module, inputs: None, after))


def _run(region: Region, modules: list[nn.Module]) -> RegionForward:
    module_calls.run_together(modules, compiled=region.compiled)
    return RegionForward(region, modules)


def _is_hooked(region: Region, modules: dict[str, nn.Module]) -> bool:
    for path in region.modules:
        if len(region.modules) > 1 and module_calls.has_hooks(modules[path]):
            warn(f"module {path!r} has hooks, so it is in no region with its neighbours")
            return True
        part = module_calls.hooked_part(modules[path]) if region.recomputed else ""
        if part:
            warn(f"module {path!r} is not recomputed: hooks of its part {part!r} would run twice")
            return True
    return False
