"""Who imports whom in the package, as its source says it.

Every import counts: those for type checkers and those inside functions, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]
"""What each one imports."""

SPLIT = frozenset({"torch"})
"""The folders whose folders are rooms of their own."""


def modules(package: Path) -> dict[str, Path]:
    """The modules of a package and their files; a compiled module has its stub."""
    found = {}
    for path in (*package.rglob("*.py"), *package.rglob("*.pyi")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(path: Path, package: Path) -> str:
    """The room of a file: its folder, or the file itself where it lies in none of the package's."""
    folders = path.relative_to(package).parts[:-1]
    if not folders:
        return package.name if path.name == "__init__.py" else path.stem
    return ".".join(folders[:2]) if folders[0] in SPLIT else folders[0]


def imported_names(name: str, path: Path) -> Iterator[str]:
    """The dotted names that module ``name`` imports, what is taken from a module included."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = [*above, node.module] if node.module else above
            yield from (".".join((*base, alias.name)) for alias in node.names)


def import_graph(files: Mapping[str, Path]) -> Graph:
    """The modules among ``files`` that each module imports.

    That a module's package is loaded before it is not counted.
    """
    graph: Graph = {}
    for name, path in files.items():
        targets = (_module_in(target, files) for target in imported_names(name, path))
        graph[name] = {target for target in targets if target is not None} - {name}
    return graph


def foreign_names(files: Mapping[str, Path], package: str) -> set[str]:
    """What modules import from outside the package, submodules by their full names."""
    names = {name for module, path in files.items() for name in imported_names(module, path)}
    return {name for name in names if name.split(".")[0] != package}


def _module_in(name: str, files: Mapping[str, Path]) -> str | None:
    """The module that ``name`` is, or is taken from."""
    while name not in files:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name
