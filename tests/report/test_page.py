"""The page as text: it refers to nothing outside of it, and no name in its data gets out of it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.diagnose import diagnose
from byteprophet.diagnose.plain import as_json
from byteprophet.diagnose.utilisation import utilisation
from byteprophet.measure.run import Run
from byteprophet.report.page import write_page
from byteprophet.report.page.build import embedded, last_of
from byteprophet.report.page.lanes import timeline
from byteprophet.report.page.series import series

from ..diagnose.hand_made import MS, START_NS, collective_job, ps_job, save_run, stock_job
from ..measure.recorded_replay import config_of, record
from ..measure.test_servers import a_job

EVIL = "</script><script>document.title='broken'</script><!-- <script> & \u2028 \"'"
FIELDS = 5


class Page(HTMLParser):
    """Elements with their attributes, and the text of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


def page_of(directory: Path, events: Any) -> Page:
    save_run(directory, events)
    found = diagnose(Run(directory))
    write_page(directory / "report.html", found, as_json(found, None))
    return Page((directory / "report.html").read_text(encoding="utf-8"))


def renamed(events: Any, name: str) -> Any:
    """All tensors, layers and collectives have another name."""
    for table in events:
        for index in table.names:
            table.names[index] = f"{name}{index}"
    return events


@pytest.mark.parametrize("job", [ps_job, collective_job, stock_job])
def test_nothing_is_fetched(tmp_path: Path, job: Any) -> None:
    page = page_of(tmp_path, job())
    assert [tag for tag, _ in page.elements].count("script") == 4
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not attributes.keys() & {"src", "href", "srcset", "action"}
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    addresses = set(re.findall(r"[a-z]+://[^\s\"'`]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, nothing that is fetched
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", text)
    assert "uPlot" in page.scripts[2]
    assert "Permission is hereby granted" in page.scripts[2]
    (policy,) = [a["content"] for _, a in page.elements if "http-equiv" in a]
    assert policy is not None
    assert "default-src 'none'" in policy


def test_names_stay_in_the_data(tmp_path: Path) -> None:
    page = page_of(tmp_path / EVIL.replace("/", "-"), renamed(ps_job(), EVIL))
    assert [tag for tag, _ in page.elements].count("script") == 4
    assert page.data["gradients"][0][0]["name"] == f"{EVIL}0"
    assert f"{EVIL}0" in "".join(page.data["timeline"]["names"])


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_what_is_embedded_is_the_same_and_no_markup(data: Any) -> None:
    text = embedded(data)
    assert json.loads(text) == data
    assert text.isascii()
    assert not set("<>&") & set(text)


def test_what_is_not_a_number_is_null() -> None:
    assert json.loads(embedded({"a": [1.5, math.nan, (math.inf,)]})) == {"a": [1.5, None, [None]]}


def slices(lane: dict[str, Any]) -> np.ndarray:
    """Rows of begin, length, kind, name and bytes: in the page each begins by a gap instead."""
    rows = np.array(lane["slices"], np.int64).reshape(-1, FIELDS)
    rows[:, 0] = rows[:, :2].cumsum(axis=0).sum(axis=1) - rows[:, 1]
    return rows


def test_lanes_of_the_timeline(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    shown = timeline(diagnose(Run(tmp_path)))
    lanes = {(lane["role"], lane["label"]): slices(lane) for lane in shown["lanes"]}
    assert set(lanes) == {
        ("critical path", ""),
        *(
            (f"worker-{rank}", kind)
            for rank in (0, 1)
            for kind in ("computes", "updates", "link up", "link down")
        ),
        ("server-0", "sums"),
    }
    unit = MS // shown["unit_ns"]
    assert shown["length"] == 300 * unit
    assert shown["iterations"] == [[11 + n, 100 * n * unit, 100 * (n + 1) * unit] for n in range(3)]
    for rows in lanes.values():  # as the script expects them: in order, apart, inside
        assert (rows[:, 0] >= 0).all()
        assert (rows[:-1, 0] + rows[:-1, 1] <= rows[1:, 0]).all()
        assert rows[-1, 0] + rows[-1, 1] <= shown["length"]
    assert lanes["critical path", ""][:, 1].sum() == shown["length"]
    up = lanes["worker-0", "link up"]
    assert up[0, :2].tolist() == [92 * unit, 12 * unit]
    assert (up[0, 4], shown["names"][up[0, 3]]) == (1_200_000, "w [0]")
    assert {shown["kinds"][kind] for kind in lanes["worker-1", "computes"][:, 2]} == {
        "wait",
        "forward",
        "backward",
    }


def test_lanes_are_in_order_whatever_the_order_of_keys(tmp_path: Path) -> None:
    """Sums at all times of an iteration, on keys drawn at random; one had no end recorded."""
    drawn = np.random.default_rng(0)
    *events, served = ps_job()
    passes = np.stack([drawn.integers(0, 100 * MS, 80), drawn.integers(0, 10 * MS, 80)], axis=1)
    rows = np.repeat(served.rows[:1], len(passes))
    rows["key"] = drawn.integers(0, 9, len(passes)) << 16
    rows["round"] = 9 + np.arange(len(passes))
    rows["arrived_ns"] = rows["sum_begin_ns"] = START_NS + passes[:, 0]
    rows["asked_ns"] = rows["answered_ns"] = 0
    rows["sum_end_ns"] = START_NS + passes.sum(axis=1)
    rows["sum_end_ns"][7] = 0
    save_run(tmp_path, [*events, replace(served, rows=np.concatenate([served.rows, rows]))])
    lanes = timeline(diagnose(Run(tmp_path)))["lanes"]
    for lane in lanes:
        found = slices(lane)
        assert (found[:, 1] >= 0).all()
        assert (found[:-1, 0] + found[:-1, 1] <= found[1:, 0]).all(), lane["label"]
    sums = [slices(lane) for lane in lanes if lane["label"].startswith("sums")]
    assert len(sums) > 1
    assert sum(map(len, sums)) == len(passes) - 1 + 2  # and those of the job, the last is after it


def test_a_long_timeline_is_cut(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    shown = timeline(diagnose(Run(tmp_path)), most=1)
    assert (len(shown["iterations"]), shown["left_out"]) == (1, 2)
    assert shown["iterations"][0][0] == 13
    assert sum(len(lane["slices"]) for lane in shown["lanes"]) < 40 * FIELDS


def test_roles_without_room_are_left_out(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    found = diagnose(Run(tmp_path))
    assert timeline(found)["roles_left_out"] == 0
    for most, roles in (
        (9, ["critical path", "worker-0", "worker-1"]),
        (1, ["critical path", "worker-0"]),
    ):
        shown = timeline(found, most_lanes=most)
        assert [*dict.fromkeys(lane["role"] for lane in shown["lanes"])] == roles
        assert shown["roles_left_out"] == 4 - len(roles)


def test_as_many_iterations_are_shown_as_fit(tmp_path: Path) -> None:
    """Also of a job whose first iterations, which are not shown, were recorded."""
    job = a_job("fifo", iterations=10)
    save_run(tmp_path, record(job)[0], config_of(job))
    found = diagnose(Run(tmp_path))
    lanes = timeline(found)["lanes"]
    count = sum(len(slices(lane)) for lane in lanes)
    assert timeline(found, most=count)["left_out"] == 0
    fewer = timeline(found, most=count - 1)
    assert fewer["left_out"] == 1
    assert sum(len(slices(lane)) for lane in fewer["lanes"]) < count


def test_a_long_run_is_cut_but_counted(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    data = as_json(diagnose(Run(tmp_path)), None)
    shown = last_of(data, most=2)
    assert (shown["counted"], shown["iterations"]) == (3, [12, 13])
    assert shown["iterations_ns"] == data["iterations_ns"][1:]
    assert [len(rows) for rows in shown["breakdown"]["parts_ns"]] == [2, 2]
    assert shown["breakdown"]["mean_ns"] == data["breakdown"]["mean_ns"]
    parts = {"parts_ns": [[[1] * 7] * 100], "mean_ns": []}
    cut = last_of({**data, "breakdown": parts})["breakdown"]
    assert [len(rows) for rows in cut["parts_ns"]] == [40]


def test_rates_over_time(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    found = series(diagnose(Run(tmp_path)))
    bytes_ = sum(found["push_bps"][0]) * found["bin_ns"] / 8e9
    # The last push ends after the last iteration: 8 of its 12 ms are there.
    assert bytes_ == pytest.approx((2 + 2 / 3) * 1_200_000, rel=1e-6)
    assert found["starts_ns"] == [0, 100 * MS, 200 * MS]
    assert not found["sampled"]
    assert found["not_sampled"]


def test_the_rate_in_the_last_bin_is_that_of_its_time(tmp_path: Path) -> None:
    save_run(tmp_path, ps_job())
    found = diagnose(Run(tmp_path))
    # Four bins of 70 ms, and one of 20 ms, in which 8 of a push's 12 ms are.
    found = replace(found, utilisation=utilisation(found.run, 70 * MS))
    rate_bps = 1_200_000 * 8e9 * 8 / 12 / (20 * MS)
    assert series(found)["push_bps"][0][-1] == pytest.approx(rate_bps, rel=1e-6)
