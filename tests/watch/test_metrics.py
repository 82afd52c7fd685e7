"""Prometheus' text, read by its grammar; the dashboard asks only for what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.watch.metrics import FAMILIES, metrics_text
from byteprophet.watch.run_watch import RunWatch

from .hand_made import MS_NS, event, link, make_run, plan, status, write_status

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? (\S+)")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples and the types of families, by the exposition format's rules."""
    assert text.endswith("\n")
    samples: Samples = {}
    types: dict[str, str] = {}
    closed: set[str] = set()
    family = ""
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            if name != family:  # all lines of a family stand together
                assert name not in closed
                closed.add(family)
                family = name
            if word == "TYPE":
                assert name not in types
                assert rest in ("counter", "gauge")
                types[name] = rest
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] == family
        labels = frozenset(
            (name, re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value))
            for name, value in re.findall(LABEL, match[2] or "")
        )
        assert (match[1], labels) not in samples
        samples[match[1], labels] = float(line.rpartition(" ")[2])
    return samples, types


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"byteprophet_{name}", frozenset(labels.items())]


def a_state(run: Path) -> Any:
    make_run(run)
    starts = [[n, 100 * n * MS_NS] for n in range(1, 13)]
    links = [link(push_bytes=1000, pull_bytes=900, push_busy_ns=2_000_000_000, in_flight_bytes=64)]
    write_status(run, status(0, starts=starts, links=links, wait_ns=1_500_000_000, transfers=7))
    late = [[n, at + 7 * MS_NS] for n, at in starts]
    write_status(run, status(1, starts=late))
    sample = {"server": None, "direction": "push", "bandwidth_bps": 800, "spread_bps": None}
    (run / "control.jsonl").write_text(
        plan(1)
        + event("adopted", plan=1, worker="worker-0", iteration=10)
        + event("samples", worker="worker-0", samples=[sample])
    )
    (run / "logs" / "worker-1.log").write_text("byteprophet: warning: a\nbyteprophet: error: b\n")
    return RunWatch(run).look()


def test_figures_of_a_run(tmp_path: Path) -> None:
    samples, types = parse(metrics_text(a_state(tmp_path / 'a "run"')))
    run = {"run": 'a "run"'}
    one, two = {**run, "worker": "worker-0"}, {**run, "worker": "worker-1"}
    assert value(samples, "iterations_total", **one) == 3
    assert value(samples, "iteration_seconds", **one) == pytest.approx(0.1)
    assert value(samples, "wait_seconds_total", **one) == 1.5
    assert value(samples, "transfers_total", **one) == 7
    assert value(samples, "link_pushed_bytes_total", **one, server="0") == 1000
    assert value(samples, "link_busy_seconds_total", **one, server="0", direction="push") == 2
    assert value(samples, "link_in_flight_bytes", **one, server="0") == 64
    assert value(
        samples, "link_bandwidth_bytes_per_second", **one, server="all", direction="push"
    ) == 100  # fmt: skip
    assert value(samples, "link_limit_bytes_per_second", **two) == 956_400_000 / 8
    assert value(samples, "straggler_last_ratio", **two) == 1
    assert value(samples, "straggler_behind_seconds", **two) == pytest.approx(0.007)
    assert value(samples, "plans_adopted_total", **run) == 1
    assert value(samples, "iteration_predicted_seconds", **run) == pytest.approx(0.09)
    assert value(samples, "log_lines_total", **run, role="worker-1", level="error") == 1
    assert ("byteprophet_iteration_bound_seconds", frozenset(run.items())) not in samples
    for name, kind in types.items():
        assert FAMILIES[name.removeprefix("byteprophet_")][0] == kind
        assert name.endswith("_total") == (kind == "counter")


def test_labels_that_are_anything(tmp_path: Path) -> None:
    state = a_state(tmp_path / "run")
    for text in ('"', "\\", "\n", '\\"', "a\\nb", "}", "ü", '{x="y"}', ""):
        samples, _ = parse(metrics_text({**state, "run": text}))
        assert value(samples, "job_failed", run=text) == 0


def test_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    state = RunWatch(tmp_path / "run").look()
    samples, _ = parse(metrics_text({**state, "problems": ["a", "b"]}))
    assert value(samples, "job_running", run="run") == 0
    assert value(samples, "problems", run="run") == 2


def queries(dashboard: Any) -> list[str]:
    variables = [
        one["query"]["query"] for one in dashboard["templating"]["list"] if one["name"] == "run"
    ]
    return [*variables, *(t["expr"] for panel in dashboard["panels"] for t in panel["targets"])]


def dashboard_metrics(dashboard: Any) -> set[str]:
    """The names of all metrics that its panels and variables ask for."""
    asked = (re.findall(r"byteprophet_\w+", query) for query in queries(dashboard))
    return {name for names in asked for name in names}


def test_the_dashboard_asks_only_for_metrics_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", "--dashboard"]) == 0
    dashboard = json.loads(capsys.readouterr().out)
    asked = dashboard_metrics(dashboard)
    assert asked <= {f"byteprophet_{name}" for name in FAMILIES}
    assert len(asked) >= 15
    for query in queries(dashboard):
        for name in re.findall(r"byteprophet_\w+", query):
            is_counter = FAMILIES[name.removeprefix("byteprophet_")][0] == "counter"
            if f"rate({name}" in query:
                assert is_counter, query


def test_the_dashboards_panels_do_not_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    run_cli(["watch", "--dashboard"])
    panels = json.loads(capsys.readouterr().out)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
