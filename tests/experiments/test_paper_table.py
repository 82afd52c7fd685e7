"""The paper's tables: from written records to figures and markdown, and what the rows must be."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import paper_script
import pytest
from paper_markdown import to_markdown
from paper_table import POLICIES, Row, Table, compare, share_links, slow_down

from byteprophet.bench.grid import Cell
from byteprophet.bench.grid_figures import Figures
from byteprophet.bench.grid_jobs import Variant, fingerprint, plan_of, prepare_cell
from byteprophet.bench.grid_store import Store
from byteprophet.errors import UserError

SECOND_NS = 1_000_000_000
TABLES = {
    name: importlib.import_module(name).TABLE
    for name in ("table2", "table3", "models", "workers", "slow_worker")
}


def cell(link: str = "1gbit", slow_worker: str | None = None) -> Cell:
    return Cell("resnet18", link, compute_ns=SECOND_NS, slow_worker=slow_worker)


SMALL = Table(
    "small",
    "Small",
    "limit",
    (
        Row("fast", cell("2gbit"), 100, {"prophet": 60.0, "bytescheduler": 40.0, "fifo": 30.0}),
        Row("slow", cell("1gbit"), 100),
    ),
    notes=("A note.",),
)


def record(
    label: str, variant: Variant, iteration_ns: int, number: int = 1, cpu: float = 0.5
) -> dict[str, Any]:
    return {
        "phase": "base",
        "cell": label,
        "variant": variant.label,
        "round": number,
        "scheduler": variant.scheduler,
        "settings": dict(variant.settings),
        "tuner": False,
        "fingerprint": "f",
        "code": "c",
        "iteration_ns": [iteration_ns] * 3,
        "bound_ns": SECOND_NS,
        "machine_cpu_fraction": cpu,
        "saturated_fraction": 0.0,
        "job_cpu_fraction": cpu,
        "parameters_sha256": "same",
    }


def sections(markdown: str) -> dict[str, str]:
    """The tables of ``markdown`` by the first words of their headings, without the rules."""
    found = {}
    for part in markdown.split("\n## ")[1:]:
        lines = part.splitlines()
        table = [line for line in lines if line.startswith("|") and "---" not in line]
        found[lines[0].split()[0].rstrip(",")] = "\n".join(table)
    return found


def test_rates_and_ratios_beside_the_papers() -> None:
    records = [
        record("fast", POLICIES["prophet"], 2 * SECOND_NS),
        record("fast", POLICIES["prophet"], 4 * SECOND_NS, number=2),
        record("fast", POLICIES["bytescheduler"], 3 * SECOND_NS),
        record("fast", POLICIES["bytescheduler"], 6 * SECOND_NS, number=2),
        record("fast", POLICIES["stock"], 5 * SECOND_NS, number=2, cpu=0.9),
        record("slow", POLICIES["p3 at 4 MB"], 8 * SECOND_NS),
    ]
    figures = Figures([row.label for row in SMALL.rows], records).cells()
    result = {
        "title": SMALL.title,
        "axis": SMALL.axis,
        "notes": SMALL.notes,
        "slowed": 1,
        "machines": [{"cores": 2}],
        "rows": compare(SMALL, figures, simulated=False),
    }
    found = sections(to_markdown(result))
    assert (
        found["Samples/s"]
        == """\
| limit | prophet | prophet-paper | bytescheduler | bytescheduler-reduce (paper's bytescheduler) \
| p3 | p3 at 4 MB | fifo | stock (paper's fifo) | bound |
| fast | 33.33 (60) | - | 22.22 (40) | - (40) | - | - | - (30) | 20* (30) | 100 |
| slow | - | - | - | - | - | 12.5 | - | - | 100 |"""
    )
    assert (
        found["prophet's"]
        == """\
| limit | prophet-paper | bytescheduler | bytescheduler-reduce | p3 | p3 at 4 MB | fifo | stock |
| fast | - | 1.50 [1.50, 1.50] (1.50) | - (1.50) | - | - | - (2.00) | 1.25 [1.25, 1.25] (2.00) |
| slow | - | - | - | - | - | - | - |"""
    )
    assert (
        found["Rates"]
        == """\
| limit | prophet | prophet-paper | bytescheduler | bytescheduler-reduce | p3 | p3 at 4 MB | fifo |
| fast | 1.67 (2.00) | - | 1.11 (1.33) | - (1.33) | - | - | - (1.00) |
| slow | - | - | - | - | - | - | - |"""
    )
    assert "Simulated" not in found
    assert to_markdown(result).endswith("\n\nA note.\n")


def test_table_3_gives_the_improvements_that_the_paper_prints() -> None:
    rows = compare(TABLES["table3"], [], simulated=False)
    over = [row["policies"]["bytescheduler"]["paper_over"] for row in rows]
    assert over == pytest.approx([1.116, 1.33, 1.015, 1.22, 1.36], abs=0.005)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_can_be_run(name: str) -> None:
    table = TABLES[name]
    assert table.name == name
    for variety in (table, share_links(table), slow_down(share_links(table), 3)):
        grid = variety.grid(3)
        assert len(grid.cells) == sum(row.real for row in table.rows)
        for row in compare(variety, [], simulated=False):
            # Where no compute is known but the paper's, no rate may exceed it.
            assert row["paper"].get("prophet", 0) < row["bound_rate"]


def test_slowed_rates_are_given_as_if_nothing_were_slowed() -> None:
    table = Table("t", "T", "x", (Row("r", cell("300mbit", slow_worker="100mbit"), 64),))
    (plain,) = compare(table, [])
    (slowed,) = compare(slow_down(table, 4), [])
    assert (slowed["link"], slowed["slow_worker"]) == ("75mbit", "25mbit")
    assert slowed["compute_ns"] == pytest.approx(4 * SECOND_NS, rel=1e-6)
    assert slowed["bound_rate"] == pytest.approx(plain["bound_rate"], rel=1e-3)
    for name in POLICIES:
        # What a message costs does not grow.
        rates = [row["policies"][name]["simulated_rate"] for row in (plain, slowed)]
        assert rates[1] == pytest.approx(rates[0], rel=0.1)


def test_workers_share_the_servers_link() -> None:
    row = Row("r", cell("1gbit", slow_worker="100mbit"), 64, server_bandwidth_bps=1_000_000_000)
    (shared,) = share_links(Table("t", "T", "x", (row,))).rows
    assert shared.cell.bandwidth_bps(shared.cell.load_workload()) == 500_000_000
    assert shared.cell.slow_worker == "100mbit"


def test_the_script_reports_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = SMALL.grid(iterations=3)
    prepared = prepare_cell(grid.cells[0], tmp_path / "workloads")
    store = Store(tmp_path / "records")
    for name, seconds in (("prophet", 2), ("stock", 4)):
        variant = POLICIES[name]
        told = fingerprint(prepared, variant, plan_of(grid, "base", prepared.case(variant)))
        store.add(record("fast", variant, seconds * SECOND_NS) | {"fingerprint": told})
    store.add(record("slow", POLICIES["prophet"], SECOND_NS) | {"fingerprint": "of other settings"})
    store.close()
    out = tmp_path / "results"
    paper_script.table_script(SMALL)(
        ["--report", "--records", str(tmp_path / "records"), "--out", str(out)]
    )
    fast, slow = json.loads((out / "small.json").read_text())["rows"]
    assert (fast["policies"]["prophet"]["rate"], fast["policies"]["stock"]["rate"]) == (50, 25)
    assert fast["policies"]["stock"]["over"]["value"] == 2
    assert slow["policies"]["prophet"]["rate"] is None
    assert slow["policies"]["prophet"]["simulated_rate"] > 0
    assert (out / "small.md").read_text() in capsys.readouterr().out
    assert (out / "small.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "none"], "--rows 'none': choose from fast, slow"),
        (["--policies", "p3,nobody"], "--policies 'nobody': choose from prophet,"),
        (["--rounds", "0"], "at least 1"),
        (["--report"], "no finished jobs"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        paper_script.table_script(SMALL)(
            [*arguments, "--records", str(tmp_path / "r"), "--out", str(tmp_path / "o")]
        )
    assert not list(tmp_path.iterdir())
