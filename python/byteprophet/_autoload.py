"""Automatic loading, for training scripts that know nothing of us.

Imported at interpreter start by ``byteprophet.pth`` if ``BYTEPS_SCHEDULER`` is set. It installs an
import hook and does nothing else. When the script imports ``byteps.torch`` or ``byteps.mxnet``, the
plug-in is loaded first, then BytePS as usual, then ours are put in the place of the functions they
replace. Without the plug-in (see ``_plugin.load``) BytePS stays as it is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Around(Loader):
    """Runs the real loader between the plug-in and the replacements."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from byteprophet import _plugin

        framework = module.__name__.split(".")[1]
        plugin = _plugin.load(framework)
        self._real.exec_module(module)
        if plugin is not None:
            replacements = importlib.import_module(f"byteprophet.{framework}.replacements")
            replacements.install(module)


class _Finder(MetaPathFinder):
    """Finds each module that has replacements once, through the other finders."""

    def __init__(self) -> None:
        self._names = {"byteps.torch", "byteps.torch.cross_barrier", "byteps.mxnet"}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        self._names.remove(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Around(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
