"""Timelines for Perfetto keep its rules, whatever was recorded, and show all of it."""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from byteprophet.errors import UserError
from byteprophet.timeline.events import Events
from byteprophet.timeline.perfetto import write_perfetto
from byteprophet.timeline.tables import (
    SERVED,
    SERVED_TABLE,
    SPAN,
    SPANS,
    TRANSFER,
    TRANSFERS,
    Kind,
)
from byteprophet.timeline.trace_file import TraceFile, quoted

from .made_up import NAMES, SECOND, UNIX_NS, origin, rows_of, timelines
from .perfetto_rules import broken_rules, read_trace

STAGES = {
    "transfers": (("ready_ns", "sent_ns"), ("sent_ns", "acked_ns"), ("acked_ns", "pulled_ns")),
    "served": (
        ("arrived_ns", "sum_begin_ns"),
        ("sum_begin_ns", "sum_end_ns"),
        ("asked_ns", "answered_ns"),
    ),
    "spans": (("begin_ns", "end_ns"),),
}


def us(time_ns: int) -> Decimal:
    return Decimal(time_ns) / 1000


def of_phase(trace: Any, phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


@given(tables=timelines())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_recorded_keeps_the_rules(tables: list[Events], tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    recorded = [
        (int(begin_ns), int(end_ns))
        for table in tables
        for begin, end in STAGES[table.table.name]
        for begin_ns, end_ns in zip(table.rows[begin], table.rows[end], strict=True)
        if begin_ns and end_ns
    ]
    times = [
        table.rows[name][table.rows[name] != 0]
        for table in tables
        for pair in STAGES[table.table.name]
        for name in pair
    ]
    if not sum(map(len, times)):
        with pytest.raises(UserError, match="nothing was recorded"):
            write_perfetto(path, tables)
        return
    written = write_perfetto(path, tables, clock=lambda _, times_ns: times_ns)
    trace = read_trace(path)
    assert broken_rules(trace) == []
    first_ns = min(int(known.min()) for known in times if len(known))
    assert trace["otherData"]["origin_ns"] == first_ns
    shown = Counter((event["ts"], event["dur"]) for event in of_phase(trace, "X"))
    missing = Counter((us(b - first_ns), us(e - b)) for b, e in recorded) - shown
    assert not missing
    assert written.slices == shown.total()
    assert written.arrows == len(of_phase(trace, "s")) == len(of_phase(trace, "f"))
    for pid in {event["pid"] for event in of_phase(trace, "C")}:
        levels = [e for e in of_phase(trace, "C") if e["pid"] == pid]
        assert all(level["args"]["bytes"] >= 0 for level in levels)
        assert levels[-1]["args"]["bytes"] == 0
        assert len({level["ts"] for level in levels}) == len(levels)


def one_of_each() -> list[Events]:
    """One partition of one worker at one server, and two spans; times in us from 1000 s."""
    now, us_ = 1000 * SECOND, 1000
    transfer = {"key": 5 << 16 | 3, "size_bytes": 4096, "server": 0, "iteration": 1, "priority": -2}
    times = {"ready_ns": now, "sent_ns": now + 10 * us_, "acked_ns": now + 20 * us_ + 1}
    served = {"key": 5 << 16 | 3, "size_bytes": 4096, "worker": 0, "round": 1}
    at_server = {
        "arrived_ns": now + 18 * us_,
        "sum_begin_ns": now + 21 * us_,
        "sum_end_ns": now + 25 * us_,
        "asked_ns": now + 19 * us_,
        "answered_ns": now + 26 * us_,
    }
    spans = [
        {"begin_ns": now, "end_ns": now + 50 * us_, "kind": Kind.ITERATION, "iteration": 1},
        {"begin_ns": now + 1, "end_ns": now + 5 * us_, "kind": Kind.BACKWARD, "name": 1, "lane": 2},
    ]
    worker, server = origin("worker-0"), origin("server-0")
    transfers = rows_of(TRANSFER, [{**transfer, **times, "pulled_ns": now + 30 * us_}])
    return [
        Events(SERVED_TABLE, server, rows_of(SERVED, [{**served, **at_server}]), {}),
        Events(TRANSFERS, worker, transfers, {5: NAMES[1]}, lost=0),
        Events(SPANS, worker, rows_of(SPAN, spans), {0: "step", 1: NAMES[2]}, whole=False),
    ]


def test_one_of_each(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json.gz"
    written = write_perfetto(path, one_of_each())
    trace = read_trace(path)
    assert broken_rules(trace) == []
    assert (written.slices, written.arrows) == (8, 1)
    assert trace["otherData"] == {"origin_ns": UNIX_NS, "lost": 0, "cut_off": ["worker-0"]}
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(trace, "M")
        if event["name"] == "thread_name"
    }
    processes = {
        event["pid"]: event["args"]["name"]
        for event in of_phase(trace, "M")
        if event["name"] == "process_name"
    }
    assert processes == {1: "worker-0", 2: "server-0"}
    label = f"{NAMES[1]} [3]"
    shown = {
        (processes[event["pid"]], names[event["pid"], event["tid"]]): (
            event["name"],
            str(event["ts"]),
            str(event["dur"]),
        )
        for event in of_phase(trace, "X")
    }
    assert shown == {
        ("worker-0", "iterations 0"): ("iteration 1", "0.000", "50.000"),
        ("worker-0", "backward (lane 0)"): (NAMES[2], "0.001", "4.999"),
        ("worker-0", "queued 0"): (label, "0.000", "10.000"),
        ("worker-0", "push 0"): (label, "10.000", "10.001"),
        ("worker-0", "pull 0"): (label, "20.001", "9.999"),
        ("server-0", "arrived 0"): (label, "18.000", "3.000"),
        ("server-0", "sum 0"): (label, "21.000", "4.000"),
        ("server-0", "answer 0"): (label, "19.000", "7.000"),
    }
    told = {names[e["pid"], e["tid"]]: e["args"] for e in of_phase(trace, "X")}
    assert told["backward (lane 0)"] == {"kind": "backward", "size_bytes": 0, "iteration": 0}
    assert told["push 0"] == {
        "size_bytes": 4096, "server": 0, "iteration": 1, "priority": -2, "key": 5 << 16 | 3,
    }  # fmt: skip
    assert told["sum 0"] == {"size_bytes": 4096, "worker": 0, "round": 1, "key": 5 << 16 | 3}
    stops = {
        event["ph"]: (names[event["pid"], event["tid"]], str(event["ts"]))
        for event in trace["traceEvents"]
        if event["ph"] in "stf"
    }
    assert stops == {"s": ("push 0", "10.000"), "t": ("sum 0", "21.000"), "f": ("pull 0", "29.999")}
    levels = [(str(event["ts"]), event["args"]) for event in of_phase(trace, "C")]
    assert levels == [("10.000", {"bytes": 4096}), ("20.001", {"bytes": 0})]


def test_the_same_events_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_perfetto(tmp_path / f"{name}.gz", one_of_each())
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_sum_that_clocks_put_out_of_order_is_passed_over(tmp_path: Path) -> None:
    """A server ahead by 15 us sums after the worker has the result; the arrow leaves that out."""
    served, *others = one_of_each()
    late = {"sum_begin_ns", "sum_end_ns"}
    for name in late:
        served.rows[name] += 15_000
    served.rows["answered_ns"] += 15_000
    write_perfetto(tmp_path / "t.json", [served, *others])
    trace = read_trace(tmp_path / "t.json")
    assert broken_rules(trace) == []
    assert [e["ph"] for e in trace["traceEvents"] if e["ph"] in "stf"] == ["s", "f"]


def test_machines_meet_on_their_wall_clocks_and_roles_of_one_keep_their_distance(
    tmp_path: Path,
) -> None:
    """The same moment: 7 s apart on the clocks of two machines; and one role read its late."""
    rows = rows_of(SPAN, [{"begin_ns": 1001 * SECOND, "end_ns": 1002 * SECOND}])
    far = rows_of(SPAN, [{"begin_ns": 1008 * SECOND, "end_ns": 1009 * SECOND}])
    late = origin("worker-1", "here", ahead_ns=5 * SECOND)
    late = type(late)(late.role, 1, "here", late.monotonic_ns, late.unix_ns + 5 * SECOND + 777)
    tables = [
        Events(SPANS, origin("worker-0", "here"), rows, {}),
        Events(SPANS, late, rows, {}),
        Events(SPANS, origin("worker-2", "there", 7 * SECOND), far, {}),
    ]
    write_perfetto(tmp_path / "t.json", tables)
    trace = read_trace(tmp_path / "t.json")
    assert {str(event["ts"]) for event in of_phase(trace, "X")} == {"0.000"}
    assert trace["otherData"]["origin_ns"] == UNIX_NS + SECOND
    write_perfetto(tmp_path / "t.json", tables, clock=lambda who, t: t + np.int64(who.rank * 2000))
    trace = read_trace(tmp_path / "t.json")
    assert [str(e["ts"]) for e in of_phase(trace, "X")] == ["0.000", "2.000", "7000004.000"]


def test_iterations_without_spans_go_from_ready_to_ready(tmp_path: Path) -> None:
    now = 1000 * SECOND
    rows = rows_of(
        TRANSFER,
        [
            {"iteration": 0, "ready_ns": now, "pulled_ns": now + 1000},
            {"iteration": 1, "ready_ns": now + 5000, "pulled_ns": now + 9000},
            {"iteration": 1, "ready_ns": now + 2000, "pulled_ns": now + 9000},
            {"iteration": 2, "ready_ns": now + 8000, "pulled_ns": now + 20_000},
        ],
    )
    write_perfetto(tmp_path / "t.json", [Events(TRANSFERS, origin("worker-0"), rows, {})])
    shown = of_phase(read_trace(tmp_path / "t.json"), "X")
    assert [(e["name"], str(e["ts"]), str(e["dur"])) for e in shown] == [
        ("iteration 1", "2.000", "6.000"),
        ("iteration 2", "8.000", "12.000"),
    ]


def first(trace: Any, phase: str) -> dict[str, Any]:
    return of_phase(trace, phase)[0]


def drop_names(trace: Any, name: str) -> None:
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != name]


def drop(trace: Any, phase: str) -> None:
    trace["traceEvents"].remove(first(trace, phase))


def overlap(trace: Any) -> None:
    event = first(trace, "X")
    half = event["dur"] / 2
    trace["traceEvents"].insert(5, {**event, "ts": event["ts"] + half, "dur": event["dur"]})


def arrows_first(trace: Any) -> None:
    trace["traceEvents"].sort(key=lambda event: event["ph"] == "X")


def share_a_thread(trace: Any) -> None:
    one, other = (e for e in trace["traceEvents"] if e["name"] == "process_name")
    other["tid"] = one["tid"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda t: t.pop("traceEvents"), "no list traceEvents"),
        (lambda t: t["traceEvents"].append(7), "is not an object"),
        (lambda t: first(t, "X").pop("pid"), "has no pid"),
        (lambda t: first(t, "X").pop("ts"), "has no ts"),
        (lambda t: first(t, "X").update(tid="3"), "tid is not an integer"),
        (lambda t: first(t, "X").update(ph="Y"), "phase is not known"),
        (lambda t: first(t, "X").update(ts=-1), "ts is not a number from 0"),
        (lambda t: first(t, "X").update(dur=Decimal(-1)), "dur is not a number from 0"),
        (lambda t: first(t, "X").pop("dur"), "dur is not a number from 0"),
        (lambda t: first(t, "X").update(name=""), "has no name"),
        (lambda t: first(t, "C").update(args={}), "has no value"),
        (lambda t: first(t, "s").pop("id"), "has no id"),
        (overlap, "ends after the slice around it"),
        (lambda t: drop_names(t, "process_name"), "has no name"),
        (lambda t: drop_names(t, "thread_name"), "has no name"),
        (lambda t: t["traceEvents"].append(first(t, "M")), "has 2 names"),
        (share_a_thread, "is in processes"),
        (lambda t: first(t, "s").update(ts=Decimal("9.999")), "hangs on no slice"),
        (lambda t: first(t, "f").update(ts=Decimal("30.000")), "hangs on no slice"),
        (arrows_first, "hangs on no slice"),
        (lambda t: first(t, "f").pop("bp"), "on the next slice"),
        (lambda t: drop(t, "s"), "goes tf"),
        (lambda t: drop(t, "f"), "goes st"),
        (lambda t: t["traceEvents"].append(first(t, "s")), "goes sstf"),
        (lambda t: first(t, "t").update(id=99), "goes t"),
    ],
)
def test_the_checker_finds(spoil: Callable[[Any], Any], complaint: str, tmp_path: Path) -> None:
    write_perfetto(tmp_path / "t.json", one_of_each())
    trace = read_trace(tmp_path / "t.json")
    assert broken_rules(trace) == []
    spoiled = copy.deepcopy(trace)
    spoil(spoiled)
    assert any(complaint in line for line in broken_rules(spoiled))


def test_the_checker_refuses_what_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": [{"ts": NaN}]}')
    with pytest.raises(ValueError, match="NaN"):
        read_trace(tmp_path / "t.json")


def test_times_before_the_origin_keep_their_digits() -> None:
    stream = io.StringIO()
    TraceFile(stream).slice(1, 2, quoted("early"), -1234, 766)
    assert '"ts": -1.234, "dur": 2.000' in stream.getvalue()


def test_what_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: Any, times_ns: Any) -> Any:
        raise UserError("no such clock")

    (tmp_path / "t.json").write_text("old")
    with pytest.raises(UserError, match="no such clock"):
        write_perfetto(tmp_path / "t.json", one_of_each(), clock=fail)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
