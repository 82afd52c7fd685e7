"""The wings of byteprophet.torch: imports point down, and there are no circles.

So every module can be imported first. Imports within functions and for types alone count, too.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import byteprophet.torch

ROOT = Path(byteprophet.torch.__file__).parent
# From the lowest on; whoever is in none of them belongs to the public face, on top.
WINGS = ("tensors", "compressors", "sync", "live_fronts", "recording", "retuning", "front")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
    if path != ROOT / "__init__.py"
}
PACKAGE = "byteprophet.torch."


def imported(path: Path) -> set[str]:
    """Modules of ``MODULES`` that ``path`` imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
    return {name.removeprefix(PACKAGE) for name in names} & MODULES.keys()


def height(module: str) -> int:
    wing = module.partition(".")[0]
    return WINGS.index(wing) if wing in WINGS else len(WINGS)


def test_imports_point_down() -> None:
    upwards = {
        (module, used)
        for module, path in MODULES.items()
        for used in imported(path)
        if height(used) > height(module)
    }
    assert not upwards


def test_there_are_no_circles() -> None:
    graph = {module: imported(path) - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # CycleError names one
