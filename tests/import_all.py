"""Imports all modules of a package in one process, and says what each of them made Python load.

``python import_all.py < INPUT``. INPUT is a JSON list of modules, with every package before what is
inside it.

Prints a JSON object. ``errors`` has an entry for each module that cannot be imported: ``error``,
and under ``missing`` the name of the module that was not found, if that is why. What is inside a
package that cannot be imported is not tried. ``loads`` has a pair for each module that was loaded
while another one's code ran: that one, and the module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Watch(MetaPathFinder):
    """Comes before all other finders, and notes what modules load while their code runs."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {*names}
        self._running: list[str] = []
        self.loads: list[tuple[str, str]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def watched(module: ModuleType) -> None:
                if self._running:
                    self.loads.append((self._running[-1], fullname))
                self._running.append(fullname)
                try:
                    run(module)
                finally:
                    self._running.pop()

            spec.loader.exec_module = watched  # type: ignore[method-assign]
        return spec


def main() -> None:
    """Read, import, print."""
    names: list[str] = json.load(sys.stdin)
    watch = _Watch(names)
    sys.meta_path.insert(0, watch)
    if loaded := [name for name in names if name in sys.modules]:
        raise SystemExit(f"loaded before the first import: {loaded}")
    gc.disable()  # imports leave hardly any garbage, and looking for it takes long
    errors: dict[str, dict[str, str]] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name in names:
            if name.rpartition(".")[0] in errors:
                continue
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 (whatever it is, it is said)
                missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
                errors[name] = {"error": f"{type(error).__name__}: {error}", "missing": missing}
    print(json.dumps({"errors": errors, "loads": watch.loads}))


if __name__ == "__main__":
    main()
