"""Imports each of some modules as the first of its package that an interpreter imports.

``python import_each_first.py < INPUT``. INPUT is a JSON object: ``modules``, with every package
before what is inside it, and ``foreign``, the names of modules of other packages and of what is in
them.

The first process imports foreign modules only. From there on, processes fork as packages branch.
Python imports a package before any module inside it, so a process that has imported the package,
and nothing else, stands for every interpreter that begins with a module inside. That is exact, and
takes seconds.

Prints a JSON object with an entry for each module that cannot be imported: ``error``, and under
``missing`` the name of the module that was not found, if that is why. What is inside a package that
cannot be imported is not tried.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NoReturn

_AT_ONCE = 2


def main() -> None:
    """Read, import, print."""
    asked = json.load(sys.stdin)
    for name in asked["foreign"]:
        _import_foreign(name)
    inside: dict[str, list[str]] = defaultdict(list)
    for name in asked["modules"]:
        inside[name.rpartition(".")[0]].append(name)
    if loaded := [name for name in asked["modules"] if name in sys.modules]:
        raise SystemExit(f"loaded before the first import: {loaded}")
    gc.disable()  # imports make no garbage, and a collection would copy shared pages
    with tempfile.TemporaryDirectory() as folder:
        _fork_each("", inside, Path(folder))
        errors = {path.name: json.loads(path.read_text()) for path in Path(folder).iterdir()}
    print(json.dumps(errors))


def _import_foreign(name: str) -> None:
    """Import ``name``, or take it from the module that it is in; what is missing may be missed."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        with contextlib.suppress(ImportError, ValueError):
            getattr(importlib.import_module(module), attribute, None)


def _fork_each(package: str, inside: dict[str, list[str]], folder: Path) -> None:
    """Import what is inside ``package``, each in a child of its own, but for what is there already.

    In this process ``package``, and nothing else, was imported.
    """
    running: dict[int, str] = {}
    at_once = 1 if "." in package else _AT_ONCE
    for name in _not_loaded(package, inside):
        if len(running) == at_once:
            _reap(running, folder)
        child = os.fork()
        if child == 0:
            _import_and_leave(name, inside, folder)
        running[child] = name
    while running:
        _reap(running, folder)


def _not_loaded(package: str, inside: dict[str, list[str]]) -> list[str]:
    """The modules inside ``package``, at any depth, that importing it has not imported."""
    found = []
    for name in inside[package]:
        found += _not_loaded(name, inside) if name in sys.modules else [name]
    return found


def _import_and_leave(name: str, inside: dict[str, list[str]], folder: Path) -> NoReturn:
    """Import ``name`` in this child, then what is inside it; end the child."""
    status = 1
    try:
        if _is_imported(name, folder):
            _fork_each(name, inside, folder)
        status = 0
    finally:
        os._exit(status)


def _is_imported(name: str, folder: Path) -> bool:
    """Import ``name``; say why that is impossible, if it is."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is said)
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        _say(name, f"{type(error).__name__}: {error}", folder, missing)
        return False
    return True


def _reap(running: dict[int, str], folder: Path) -> None:
    child, status = os.wait()
    name = running.pop(child)
    if status:
        _say(name, f"the process that imported it ended with status {status}", folder)


def _say(name: str, error: str, folder: Path, missing: str = "") -> None:
    (folder / name).write_text(json.dumps({"error": error, "missing": missing}))


if __name__ == "__main__":
    main()
