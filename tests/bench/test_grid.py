"""Grid files: what is read, what is refused and how it is named, and the grids that come along."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.bench.grid import Grid, built_in_grids, load_grid, parse_grid
from byteprophet.errors import UserError
from byteprophet.workload import load, to_toml

CELL = '[[cell]]\nworkload = "resnet50"\nlink = 0.9\n'


def parse(cells: str, head: str = 'name = "g"\n') -> Grid:
    return parse_grid(head + cells, "g.toml", Path())


def test_the_format_is_as_documented(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(to_toml(load("random:3")))
    text = """\
name = "mine"
iterations = 5
warmup_iterations = 2
[[cell]]
workload = "resnet50"
link = 0.9
compute_ns = 900000000
workers = 3
servers = 2
tensors_per_burst = 8
tuning = true
name = "mine-1"
[[cell]]
workload = "own.toml"
link = "500mbit"
[[cell]]
workload = "random:7"
link = "unlimited"
workers = 3
slow_worker = "200mbit"
"""
    grid = parse_grid(text, "g.toml", tmp_path)
    assert (grid.name, grid.iterations, grid.warmup_iterations) == ("mine", 5, 2)
    assert [cell.name for cell in grid.cells] == [
        "mine-1",
        "own-500mbit-2w1s",
        "random-7-unlimited-3w1s-slow200mbit",
    ]
    first, own, generated = grid.cells
    assert (first.workers, first.servers, first.tuning) == (3, 2, True)
    assert len(first.load_workload().bursts()) == -(-161 // 8)
    assert own.load_workload() == load("random:3")
    assert own.bandwidth_bps(own.load_workload()) == 500_000_000
    assert generated.bandwidth_bps(generated.load_workload()) is None
    assert generated.worker_bandwidth_bps == {2: 200_000_000}
    assert own.worker_bandwidth_bps == {}


def test_a_link_relative_to_compute_takes_that_long_for_the_payload() -> None:
    (cell,) = parse(CELL + "compute_ns = 500_000_000\n").cells
    workload = cell.load_workload()
    rate_bps = cell.bandwidth_bps(workload)
    assert rate_bps is not None
    seconds = 4 * 25_557_032 * 8 / (rate_bps * 1448 / 1514)
    assert seconds == pytest.approx(0.9 * 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ("", "cell is missing"),
        ("cell = 3\n", r"\[\[cell\]\]"),
        (CELL + "[[cell]]\n", "cell 2: workload is missing"),
        (CELL + "hosts = 3\n", "cell 1: unknown field 'hosts'"),
        (CELL.replace("resnet50", "resnet51"), "cell 1: workload 'resnet51'"),
        (CELL.replace("0.9", "0"), "cell 1: link .* got 0"),
        (CELL.replace("0.9", "nan"), "cell 1: link .* got nan"),
        (CELL.replace("0.9", "true"), "cell 1: link .* got True"),
        (CELL.replace("0.9", '"fast"'), "cell 1: link.*fast"),
        (CELL.replace("0.9", '"1bit"'), "cell 1: link '1bit' is too slow"),
        (CELL.replace("0.9", f"1000\ncompute_ns = {10**15}"), "cell 1: link 1000: is 1 bit/s"),
        (CELL + "workers = 0\n", "cell 1: workers .* got 0"),
        (CELL + "servers = 1.5\n", "cell 1: servers .* got 1.5"),
        (CELL + "compute_ns = 0\n", "cell 1: compute_ns .* got 0"),
        (CELL + "tuning = 1\n", "cell 1: tuning .* got 1"),
        (CELL + "slow_worker = 0.5\n", "cell 1: slow_worker .* got 0.5"),
        (CELL + 'slow_worker = "slow"\n', "cell 1: slow_worker.*slow"),
        (CELL + 'slow_worker = "unlimited"\n', "cell 1: slow_worker .*unlimited"),
        (CELL + "name = 3\n", "cell 1: name .* got 3"),
        (CELL + CELL, "cell 2: has the name 'resnet50-x0.9-2w1s' of cell 1"),
    ],
)
def test_what_is_wrong_is_named(cells: str, named: str) -> None:
    with pytest.raises(UserError, match=f"^g.toml: .*{named}"):
        parse(cells)


@pytest.mark.parametrize(
    "head", ['name = ""\n', "", 'name = "g"\niterations = 0\n', 'name = "g"\nrounds = 2\n']
)
def test_the_head_is_checked(head: str) -> None:
    with pytest.raises(UserError, match=r"^g\.toml: "):
        parse(CELL, head)


def test_the_grids_that_come_along_are_what_they_must_be() -> None:
    default = load_grid("default").cells
    assert len(default) >= 16
    assert len({cell.workload for cell in default}) >= 6
    assert {0.3, 0.5, 0.9, 1.0, 1.3, 2, "unlimited"} <= {cell.link for cell in default}
    assert {cell.workers for cell in default} == {2, 3, 4}
    assert {cell.servers for cell in default} == {1, 2}
    assert any(cell.tensors_per_burst for cell in default)
    generated = load_grid("generated").cells
    assert len(generated) >= 8
    assert all(cell.workload.startswith("random:") for cell in generated)
    for name in built_in_grids():
        assert load_grid(name).name == name


def test_slowed_cells_keep_their_names_and_shares_of_time() -> None:
    cells = CELL + '[[cell]]\nworkload = "resnet18"\nlink = "600mbit"\nslow_worker = "90mbit"\n'
    grid = parse(cells + '[[cell]]\nworkload = "resnet18"\nlink = "unlimited"\n')
    slowed = grid.slowed(3)
    assert slowed.name == "g-slowed3"
    assert [cell.name for cell in slowed.cells] == [cell.name for cell in grid.cells]
    for before, after in zip(grid.cells, slowed.cells, strict=True):
        workload, longer = before.load_workload(), after.load_workload()
        assert longer.forward_ns + longer.backward_ns == pytest.approx(
            3 * (workload.forward_ns + workload.backward_ns), rel=1e-6
        )
        rate_bps = before.bandwidth_bps(workload)
        assert after.bandwidth_bps(longer) == (rate_bps and pytest.approx(rate_bps / 3, rel=1e-6))
    assert slowed.cells[1].worker_bandwidth_bps == {1: 30_000_000}
    assert grid.slowed(1) is grid
    with pytest.raises(UserError, match="--slowed 0: must be from 1 to 100"):
        grid.slowed(0)
    with pytest.raises(UserError, match="link '6bit' is too slow"):
        parse(CELL.replace("0.9", '"20bit"')).slowed(3)


def test_a_grid_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"'nope' is neither built in \(default, .*\) nor a file"):
        load_grid("nope")
