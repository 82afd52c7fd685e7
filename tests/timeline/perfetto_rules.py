"""What Perfetto asks of a trace in Chrome's JSON, so that it shows all of it, and where it belongs.

Perfetto sorts events by time, keeping the file's order among equals, and puts slices on a stack per
thread. A slice that ends after the one around it is cut or dropped; an arrow hangs on whatever is
open on its thread at its time; a number that is no number is dropped with its event.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

PHASES = ("M", "X", "C", "s", "t", "f")
ARROWS = ("s", "t", "f")


def read_trace(path: Path) -> Any:
    """The file's JSON, numbers exact; ValueError if it is none."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)

    def refuse(text: str) -> None:
        raise ValueError(f"{text} is not JSON")

    return json.loads(content.decode(), parse_float=Decimal, parse_constant=refuse)


def broken_rules(trace: Any) -> list[str]:
    """One line per rule and place where ``trace`` breaks it."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["there is no list traceEvents"]
    events = trace["traceEvents"]
    broken = [complaint for event in events for complaint in _fields(event)]
    if broken:
        return broken  # nothing else can be said
    return [*_names(events), *_slices(events), *_arrows(events)]


def _fields(event: Any) -> list[str]:
    if not isinstance(event, dict):
        return [f"{event!r}: is not an object"]
    broken = [f"{event}: has no {name}" for name in ("ph", "pid", "tid", "ts") if name not in event]
    if event.get("ph") not in PHASES:
        broken.append(f"{event}: its phase is not known")
    broken += [
        f"{event}: {name} is not an integer"
        for name in ("pid", "tid")
        if type(event.get(name)) is not int
    ]
    times = ("ts", "dur") if event.get("ph") == "X" else ("ts",)
    for name in times:
        value = event.get(name)
        if type(value) not in (int, Decimal) or value < 0:
            broken.append(f"{event}: {name} is not a number from 0")
    if not isinstance(event.get("name"), str) or not event["name"]:
        broken.append(f"{event}: has no name")
    if event.get("ph") == "C" and not (
        event.get("args") and all(type(v) in (int, Decimal) for v in event["args"].values())
    ):
        broken.append(f"{event}: has no value")
    if event.get("ph") in ARROWS and type(event.get("id")) is not int:
        broken.append(f"{event}: has no id")
    return broken


def _names(events: list[dict[str, Any]]) -> list[str]:
    """Every process and thread has one name, and no thread is in two processes."""
    named: dict[Any, int] = defaultdict(int)
    used: set[Any] = set()
    processes: dict[int, set[int]] = defaultdict(set)
    for event in events:
        pid, tid = event["pid"], event["tid"]
        processes[tid].add(pid)
        if event["ph"] == "M":
            if event["name"] in ("process_name", "thread_name"):
                if not isinstance(event.get("args", {}).get("name"), str):
                    return [f"{event}: gives no name"]
                named[pid if event["name"] == "process_name" else (pid, tid)] += 1
        else:
            used.add(pid)
            if event["ph"] != "C":  # a counter is its process'
                used.add((pid, tid))
    return [
        *(f"{one}: has no name" for one in used if not named[one]),
        *(f"{one}: has {count} names" for one, count in named.items() if count > 1),
        *(
            f"thread {tid}: is in processes {sorted(pids)}"
            for tid, pids in processes.items()
            if len(pids) > 1
        ),
    ]


def _slices(events: list[dict[str, Any]]) -> list[str]:
    """Of two slices of a thread, one contains the other, or they have nothing in common."""
    broken = []
    open_ends: dict[Any, list[Decimal]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        ends, end = open_ends[event["pid"], event["tid"]], event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        if ends and end > ends[-1]:
            broken.append(f"{event}: ends after the slice around it")
        ends.append(end)
    return broken


def _arrows(events: list[dict[str, Any]]) -> list[str]:
    """Each begins once, then ends once, and hangs on a slice wherever it stops."""
    broken = []
    slices: dict[Any, list[tuple[Decimal, Decimal, int]]] = defaultdict(list)
    arrows: dict[int, list[tuple[Decimal, int, str]]] = defaultdict(list)
    for place, event in enumerate(events):
        thread = event["pid"], event["tid"]
        if event["ph"] == "X":
            slices[thread].append((event["ts"], event["ts"] + event["dur"], place))
    for place, event in enumerate(events):
        if event["ph"] not in ARROWS:
            continue
        time = event["ts"]
        arrows[event["id"]].append((time, place, event["ph"]))
        if not any(
            begin <= time < end and (begin, before) < (time, place)
            for begin, end, before in slices[event["pid"], event["tid"]]
        ):
            broken.append(f"{event}: hangs on no slice")
        if event["ph"] == "f" and event.get("bp") != "e":
            broken.append(f"{event}: hangs on the next slice, not on the one around it")
    for number, stops in arrows.items():
        phases = "".join(phase for _, _, phase in sorted(stops))
        if len(phases) < 2 or phases != f"s{'t' * (len(phases) - 2)}f":
            broken.append(f"arrow {number}: goes {phases}")
    return broken
