"""Loads byteprophet automatically into training scripts that do not mention it.

``byteprophet.pth`` imports this at interpreter start if one of the variables below is set. It only
installs an import hook.

With ``BYTEPS_SCHEDULER``, the hook waits for ``byteps.torch`` or ``byteps.mxnet``. It loads the
plug-in first, then BytePS as usual, and then replaces some of its functions with ours. If there is
no plug-in (see ``_plugin.load``), BytePS stays as it is. In a rank of a job without servers, the
functions of ``byteps.torch`` are replaced if ``BYTEPROPHET_STRATEGY`` or ``BYTEPROPHET_SYNC`` is
set. The latter also replaces BytePS' own ``DistributedDataParallel``, with or without servers.

With ``BYTEPROPHET_SYNC``, ``BYTEPROPHET_STRATEGY``, ``BYTEPROPHET_RECORD`` or
``BYTEPROPHET_REGION_COSTS``, the hook waits for the module that defines
``DistributedDataParallel``, whose constructor then calls ours (``torch/data_parallel.py``).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_BYTEPS = ("byteps.torch", "byteps.torch.cross_barrier", "byteps.mxnet")
_DATA_PARALLEL = "torch.nn.parallel.distributed"
_BYTEPS_DATA_PARALLEL = "byteps.torch.parallel.distributed"
_FOR_DATA_PARALLEL = ("BYTEPROPHET_STRATEGY", "BYTEPROPHET_SYNC", "BYTEPROPHET_REGION_COSTS")


class _Around(Loader):
    """Runs the real loader, and changes what it has loaded. ``done`` is called after that."""

    def __init__(self, real: Loader, done: Callable[[], None]) -> None:
        self._real = real
        self._done = done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._execute(module)
        self._done()

    def _execute(self, module: ModuleType) -> None:
        if module.__name__ == _DATA_PARALLEL:
            self._real.exec_module(module)
            _wrap_constructor(module.DistributedDataParallel)
            return
        from byteprophet import _plugin

        framework = module.__name__.split(".")[1]
        plugin = _plugin.load(framework)
        self._real.exec_module(module)
        if plugin is not None or _without_servers(os.environ):
            replacements = importlib.import_module(f"byteprophet.{framework}.replacements")
            replacements.install(module)


class _Finder(MetaPathFinder):
    """Finds modules that are changed, through the other finders, until they have been imported.

    A script may look for a module (``importlib.util.find_spec``) before it imports it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)
        self._looking: set[tuple[int, str]] = set()  # by thread: for what other finders are asked

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        looking = (threading.get_ident(), fullname)
        if fullname not in self._names or looking in self._looking:
            return None
        self._looking.add(looking)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(looking)
        if spec is not None and spec.loader is not None:
            spec.loader = _Around(spec.loader, functools.partial(self._names.discard, fullname))
        return spec


def _wrap_constructor(kind: Any) -> None:
    """Have ``kind()`` call ours. torch is still being imported, so ours is imported when called."""
    plain = kind.__init__

    @functools.wraps(plain)
    def constructed(model: Any, *arguments: Any, **options: Any) -> None:
        ours = importlib.import_module("byteprophet.torch.data_parallel")
        ours.construct(plain, model, *arguments, **options)

    kind.__init__ = constructed


def _changed_modules(environment: Mapping[str, str]) -> list[str]:
    """The names of the modules that are changed when they are imported."""
    names = [*_BYTEPS] if environment.get("BYTEPS_SCHEDULER") else []
    if _without_servers(environment):
        names += [name for name in _BYTEPS if name.startswith("byteps.torch")]
    if environment.get("BYTEPROPHET_SYNC") and environment.get("WORLD_SIZE"):
        names.append(_BYTEPS_DATA_PARALLEL)
    recorded = environment.get("BYTEPROPHET_RECORD", "0") != "0"
    if recorded or any(map(environment.get, _FOR_DATA_PARALLEL)):
        names.append(_DATA_PARALLEL)
    return names


def _without_servers(environment: Mapping[str, str]) -> bool:
    """Whether this process, a rank of torch.distributed, is to use ours in place of BytePS."""
    ranks = environment.get("WORLD_SIZE") and not environment.get("DMLC_NUM_WORKER")
    asked = environment.get("BYTEPROPHET_STRATEGY") or environment.get("BYTEPROPHET_SYNC")
    return bool(ranks and asked)


def _install(names: Sequence[str]) -> None:
    sys.meta_path.insert(0, _Finder(names))
    if _DATA_PARALLEL in names and _DATA_PARALLEL in sys.modules:  # this is a fork
        _wrap_constructor(sys.modules[_DATA_PARALLEL].DistributedDataParallel)


_install(_changed_modules(os.environ))
