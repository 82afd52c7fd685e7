"""Who imports whom in the package, as its source says it.

Every import counts: those for type checkers and those inside functions, too.
"""

from __future__ import annotations

import ast
import functools
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


@functools.cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """The parts of a file's source to which an import or an attribute may belong."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    kinds = ast.Import, ast.ImportFrom, ast.Attribute
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def _base_of(name: str, path: Path, node: ast.ImportFrom) -> list[str]:
    """From where ``node``, in module ``name``, takes names: the parts of a dotted name."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    above = package[: len(package) - node.level + 1] if node.level else []
    return [*above, node.module] if node.module else above


def imported_names(name: str, path: Path) -> Iterator[str]:
    """The dotted names that module ``name`` imports, what is taken from a module included."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(name, path, node)
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


def loading_graph(files: Mapping[str, Path]) -> Graph:
    """The modules that each module makes Python load: its imports, and their packages.

    A module's own packages are left out: Python has begun with them before it begins with it.
    """
    return {
        name: {
            each
            for target in targets
            for each in (target, *packages_of(target))
            if each in files and each != name and each not in packages_of(name)
        }
        | targets
        for name, targets in import_graph(files).items()
    }


def packages_of(name: str) -> list[str]:
    """The packages that a module is in, from the inside."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def reached_names(name: str, path: Path, files: Mapping[str, Path]) -> set[str]:
    """Modules among ``files`` that module ``name`` has not imported, but takes from their packages.

    That works only after some other module has imported them.
    """
    bound: dict[str, str] = {}
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                bound[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(name, path, node)
            bound |= {a.asname or a.name: ".".join((*base, a.name)) for a in node.names}
    reached = {
        f"{bound[node.value.id]}.{node.attr}"
        for node in _nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in bound
    }
    imported = {_module_in(each, files) for each in imported_names(name, path)}
    return {each for each in reached if each in files} - imported


def _module_in(name: str, files: Mapping[str, Path]) -> str | None:
    """The module that ``name`` is, or is taken from."""
    while name not in files:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name
