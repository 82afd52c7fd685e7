"""Rooms and modules import each other in one direction, as docs/architecture.md draws it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from byteprophet.bench.grid_jobs import RUNS_IN_JOBS

from .import_graph import (
    Graph,
    import_graph,
    loading_graph,
    modules,
    reached_names,
    room_of,
)

CHECKOUT = Path(__file__).parents[1]
PACKAGE = CHECKOUT / "python" / "byteprophet"
FILES = modules(PACKAGE)
ROOMS = {name: room_of(path, PACKAGE) for name, path in FILES.items() if name != PACKAGE.name}
ALL_ROOMS = sorted(set(ROOMS.values()))
EVERY = "every room"
MXNET = ("mxnet", "byteps.mxnet")
"""Not installed beside PyTorch: what needs them is checked where MXNet is."""


def drawn_arrows() -> Graph:
    """The table of rooms: whom those of the first column may import, from the top."""
    text = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = re.search(r"^\| room \| imports \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    arrows: Graph = {}
    for line in table[1].splitlines():
        first, second = line.split("|")[1:3]
        for room in re.findall(r"`(.+?)`", first) or [first.strip()]:
            assert room not in arrows, f"{room} has two rows"
            arrows[room] = set(re.findall(r"`(.+?)`", second))
    return arrows


ARROWS = drawn_arrows()
GROUND = ARROWS[EVERY]


@functools.cache
def rooms_graph() -> dict[str, dict[str, list[str]]]:
    """Per room the rooms that it imports, and by which imports."""
    found: dict[str, dict[str, list[str]]] = {room: defaultdict(list) for room in ALL_ROOMS}
    for name, targets in import_graph(FILES).items():
        here = ROOMS.get(name)
        if here is None:  # the package itself, which offers names of the ground floor
            assert {ROOMS[target] for target in targets} <= GROUND
            continue
        for target in targets & ROOMS.keys():
            if ROOMS[target] != here:
                found[here][ROOMS[target]].append(f"{name} -> {target}")
    return found


def circle(graph: Graph) -> str:
    """A circle in ``graph``, if there is one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""


def test_there_is_no_circle_between_modules() -> None:
    assert circle(import_graph(FILES)) == ""


def test_there_is_no_circle_between_rooms() -> None:
    assert circle({room: set(targets) for room, targets in rooms_graph().items()}) == ""


@pytest.mark.parametrize("room", sorted({*ALL_ROOMS, *ARROWS} - {EVERY, *GROUND}))
def test_the_map_draws_what_a_room_imports(room: str) -> None:
    assert room in ALL_ROOMS, "there is no such room"
    assert room in ARROWS, "the map has no row for this room"
    imports = {there: by for there, by in rooms_graph()[room].items() if there not in GROUND}
    assert not {there: by for there, by in imports.items() if there not in ARROWS[room]}
    assert not ARROWS[room] - imports.keys(), "drawn, but nothing imports it"


def test_whoever_is_drawn_stands_above_those_that_it_imports() -> None:
    rows = list(ARROWS)
    for room, targets in ARROWS.items():
        assert not {there for there in targets - GROUND if rows.index(there) <= rows.index(room)}


def test_the_ground_floor_stands_on_nothing_else() -> None:
    graph = rooms_graph()
    assert set(ALL_ROOMS) >= GROUND
    assert not {room: graph[room].keys() - GROUND for room in GROUND if graph[room].keys() - GROUND}


# Each module can be the first of the package that an interpreter imports. A module fails there, and
# not elsewhere, if its code meets something that only others have made, or a module whose code has
# not ended. Three tests show that nothing of this kind is met, whoever comes first: nobody takes a
# module from its package without importing it; loads make no circle, not even through packages; and
# what was loaded is what the source says. Every module's code then finds the same in every order.
# So the last test imports each of them once, in one process.


def test_no_module_is_taken_from_its_package_without_an_import() -> None:
    found = {name: reached_names(name, path, FILES) for name, path in FILES.items()}
    assert not {name: reached for name, reached in found.items() if reached}


def test_no_module_meets_one_whose_code_still_runs() -> None:
    assert circle(loading_graph(FILES)) == ""


@dataclass(frozen=True)
class Imported:
    """What the import of all modules has shown (``import_all.py``)."""

    errors: Mapping[str, Mapping[str, str]]
    loads: Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def imported() -> Imported:
    environment = {name: value for name, value in os.environ.items() if name != "BYTEPS_SCHEDULER"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("import_all.py"))],
        input=json.dumps(sorted(name for name, path in FILES.items() if path.suffix == ".py")),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return Imported(**json.loads(done.stdout))


def test_modules_load_what_their_source_imports(imported: Imported) -> None:
    """Also what a function imports that a module's code calls."""
    graph = loading_graph(FILES)
    assert len(imported.loads) > len(FILES) // 2
    assert not [
        (name, loaded) for name, loaded in imported.loads if loaded not in reachable(graph, name)
    ]


def test_the_bench_knows_the_rooms_whose_code_runs_in_its_jobs() -> None:
    """Records of older code are not taken for those of today's."""
    graph = loading_graph(FILES)
    runs = {name for name in FILES if ROOMS.get(name) in ("paced", "torch", "hooks")}
    rooms = {ROOMS[each] for name in runs for each in reachable(graph, name) if each in ROOMS}
    folders = {room for room in rooms if (PACKAGE / room).is_dir()}
    assert folders <= {*RUNS_IN_JOBS}


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("room", ALL_ROOMS)
def test_each_module_can_be_imported(room: str, imported: Imported) -> None:
    here = {name: said for name, said in imported.errors.items() if ROOMS.get(name) == room}
    without = {name for name, said in here.items() if said["missing"] in MXNET}
    assert not {name: said["error"] for name, said in here.items() if name not in without}
    if without:
        pytest.skip(f"{len(without)} modules: {here[min(without)]['error']}")
