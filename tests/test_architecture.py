"""Rooms and modules import each other in one direction, as docs/architecture.md draws it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .import_graph import Graph, foreign_names, import_graph, modules, room_of

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


GRAPH = rooms_graph()


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
    assert circle({room: set(targets) for room, targets in GRAPH.items()}) == ""


@pytest.mark.parametrize("room", sorted({*ALL_ROOMS, *ARROWS} - {EVERY, *GROUND}))
def test_the_map_draws_what_a_room_imports(room: str) -> None:
    assert room in ALL_ROOMS, "there is no such room"
    assert room in ARROWS, "the map has no row for this room"
    imports = {there: by for there, by in GRAPH[room].items() if there not in GROUND}
    assert not {there: by for there, by in imports.items() if there not in ARROWS[room]}
    assert not ARROWS[room] - imports.keys(), "drawn, but nothing imports it"


def test_whoever_is_drawn_stands_above_those_that_it_imports() -> None:
    rows = list(ARROWS)
    for room, targets in ARROWS.items():
        assert not {there for there in targets - GROUND if rows.index(there) <= rows.index(room)}


def test_the_ground_floor_stands_on_nothing_else() -> None:
    assert set(ALL_ROOMS) >= GROUND
    assert not {room: GRAPH[room].keys() - GROUND for room in GROUND if GRAPH[room].keys() - GROUND}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, str]]:
    """Of the modules that cannot be the first of the package that an interpreter imports."""
    foreign = foreign_names(FILES, PACKAGE.name)
    ours = {name for name, path in FILES.items() if path.suffix == ".py"}
    asked = {
        "modules": sorted(ours),
        "foreign": sorted(name for name in foreign if not name.startswith(("byteps", "mxnet"))),
    }
    environment = {name: value for name, value in os.environ.items() if name != "BYTEPS_SCHEDULER"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("import_each_first.py"))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("room", ALL_ROOMS)
def test_each_module_can_be_imported_first(room: str, errors: dict[str, dict[str, str]]) -> None:
    here = {name: said for name, said in errors.items() if ROOMS.get(name) == room}
    without = {name for name, said in here.items() if said["missing"] in MXNET}
    assert not {name: said["error"] for name, said in here.items() if name not in without}
    if without:
        pytest.skip(f"{len(without)} modules: {here[min(without)]['error']}")
