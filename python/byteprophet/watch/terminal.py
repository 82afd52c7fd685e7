"""The live view as text: one state as tables for the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from byteprophet.errors import one_line
from byteprophet.watch.rates import SPAN_S
from byteprophet.watch.sources import PERIOD_S, Shared

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_MOST_ROWS = 16
_MOST_WAITS = 5
_MOST_LINES = 8
_MOST_PLANS = 4
_MOST_EVENTS = 5
_FIRST_S = 6.0
_IN_ORDER = ", in order of arrival: the processor is the limit"
_RUNNING = ("running", "unknown", "silent", "restarting")
_COLOURS = {
    "running": "green",
    "failed": "red",
    "silent": "yellow",
    "restarting": "yellow",
    "interrupted": "yellow",
}


def show(shared: Shared, console: Console) -> None:
    """Shows states until the job ends; where there is no terminal, shows one and returns.

    Raises what ``shared`` raises. Ctrl-C raises ``KeyboardInterrupt``.
    """
    if not console.is_terminal:
        console.print(view(settled(shared)))
        return
    state = shared.state()
    with Live(view(state), console=console, auto_refresh=False, screen=False) as live:
        while state["status"] in _RUNNING:
            time.sleep(PERIOD_S)
            state = shared.state()
            live.update(view(state), refresh=True)


def settled(shared: Shared, most_s: float = _FIRST_S) -> dict[str, Any]:
    """A state in which workers of a running job have had time to tell their rates."""
    deadline_s = time.monotonic() + most_s
    while True:
        state = shared.state()
        ended = state["status"] not in _RUNNING
        told = any(worker["push_bps"] is not None for worker in state["workers"])
        if ended or told or time.monotonic() > deadline_s:
            return state
        time.sleep(PERIOD_S)


def view(state: Mapping[str, Any]) -> RenderableType:
    """A state's tables."""
    parts: list[RenderableType] = [_head(state), _iterations(state["iteration"])]
    if state["workers"]:
        parts.append(_workers(state))
        if any(worker["links"] for worker in state["workers"]):
            parts.append(_links(state["workers"]))
        parts += [Text(line) for line in _waits(state["workers"])]
    parts += [Text(line) for line in _plans(state)]
    # Plans have been shown.
    happened = [one for one in state["happened"] if one["kind"] != "plan"]
    parts += [Text(_plain(one["text"])) for one in happened[-_MOST_EVENTS:]]
    lines = [("viewer", text) for text in state["problems"]]
    lines += [(row["role"], row["text"]) for row in state["warnings"]["latest"][-_MOST_LINES:]]
    parts += [Text(f"[{_plain(role)}] {_plain(text)}", style="yellow") for role, text in lines]
    return Group(*parts)


def _head(state: Mapping[str, Any]) -> Text:
    status, facts = str(state["status"]), state["facts"]
    text = Text(f"{_plain(state['run'])}  ", style="bold")
    text.append(_plain(status), style=_COLOURS.get(status, ""))
    if status == "silent":
        text.append(f" for {state['silent_s']:.0f} s")
    known = [
        f"scheduler {facts['scheduler']}" if facts.get("scheduler") else "",
        _counted(facts.get("workers"), "worker"),
        _counted(facts.get("servers"), "server"),
        f"links of {_mbit(facts['bandwidth_bps'])}" if facts.get("bandwidth_bps") else "",
        *(
            f"that of worker-{worker} {_mbit(rate_bps)}"
            for worker, rate_bps in facts.get("worker_bandwidth_bps", {}).items()
        ),
    ]
    text.append("  " + _plain(", ".join(fact for fact in known if fact)), style="dim")
    if state["failed"]:
        text.append(f"\n{_plain(state['failed'])}", style="red")
    return text


def _counted(count: int | None, what: str) -> str:
    """``what`` in the right number; "" for none."""
    return f"{count} {what}{'' if count == 1 else 's'}" if count else ""


def _iterations(iteration: Mapping[str, Any]) -> Text:
    parts = [f"iteration {iteration['count']}"]
    median_ns, bound_ns = iteration["median_ns"], iteration["bound_ns"]
    if median_ns is not None:
        parts.append(f"median {_ms(median_ns)}")
    if bound_ns is None:
        parts.append(f"bound not known: {_plain(iteration['bound_why'])}")
    else:
        ratio = "" if median_ns is None else f" ({median_ns / bound_ns:.2f} times)"
        parts.append(f"bound {_ms(bound_ns)}{ratio}")
    if iteration["predicted_ns"] is not None:
        parts.append(f"predicted {_ms(iteration['predicted_ns'])} by {iteration['predicted_by']}")
    return Text(f"{', '.join(parts)}\n{sparkline(iteration['slowest_ns'])}")


def sparkline(values: Sequence[float]) -> str:
    """The last values as bars, from 0 to the largest."""
    shown = values[-_MOST_BARS:]
    most = max(shown, default=0)
    if most <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(len(_BARS) * value / most))] for value in shown)


def _workers(state: Mapping[str, Any]) -> Table:
    table = _table("worker", "iterations", "iteration", "waits", "came last", "behind", "after ack")
    for worker in state["workers"][:_MOST_ROWS]:
        late = worker["late"]
        mark = " (straggler)" if worker["role"] == state["straggler"] else ""
        if worker["age_s"] > SPAN_S and not worker["ended"]:
            mark += f" (silent for {worker['age_s']:.0f} s)"
        table.add_row(
            _plain(worker["role"]) + mark,
            str(worker["iterations"]),
            _or_dash(worker["median_ns"], _ms),
            _or_dash(worker["wait_share"], lambda share: f"{share:.1%}"),
            _or_dash(late, lambda one: f"{one['last']} of {one['of']}"),
            _or_dash(late, lambda one: _ms(one["behind_ns"])),
            _or_dash(worker["peers_ns"], _ms),
        )
    table.caption = _more(len(state["workers"]), "worker")
    return table


def _links(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("link", "push", "busy", "pull", "busy", "window", "limit")
    rows = [(worker, link) for worker in workers for link in worker["links"]]
    table.caption = _more(len(rows), "link")
    for worker, link in rows[:_MOST_ROWS]:
        server = "interfaces" if link["server"] is None else f"server {link['server']}"
        table.add_row(
            f"{_plain(worker['role'])} - {server}",
            _mbit(link["push_bps"]),
            _or_dash(link["push_busy_bps"], _mbit),
            _mbit(link["pull_bps"]),
            _or_dash(link["pull_busy_bps"], _mbit),
            _or_dash(link["in_flight_bytes"], lambda size: f"{size / 1e3:.0f} kB"),
            _or_dash(worker["limit_bps"], _mbit),
        )
    return table


def _more(count: int, what: str) -> str | None:
    """What stands below a table of so many rows, of which it shows only the first."""
    return f"and {_counted(count - _MOST_ROWS, f'more {what}')}" if count > _MOST_ROWS else None


def _waits(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    waits = [(worker["role"], wait) for worker in workers for wait in worker["waits"]]
    longest = sorted(waits, key=lambda row: -row[1]["wait_ns"])[:_MOST_WAITS]
    return [
        f"{_plain(role)} waited for {_plain(wait['name'])}: {_ms(wait['wait_ns'])} in "
        f"{wait['count']} waits"
        for role, wait in longest
    ]


def _plans(state: Mapping[str, Any]) -> list[str]:
    lines = []
    for plan in state["plans"]["latest"][-_MOST_PLANS:]:
        measured = "" if plan["measured_ns"] is None else f", measured {_ms(plan['measured_ns'])}"
        lines.append(
            f"plan {plan['number']} from iteration {plan['at_iteration']}, adopted by "
            f"{plan['adopted']} of {plan['workers']}: predicted {_ms(plan['predicted_ns'])}"
            f"{measured}{_IN_ORDER if plan['settings'].get('in_order') == 1 else ''}"
        )
    if tuning := state["tuning"]:
        verb = "chosen" if tuning["chosen"] else "tried"
        settings = ", ".join(f"{name} {value}" for name, value in tuning["settings"].items())
        lines.append(f"tuning: {verb} {_plain(settings)}: {_ms(tuning['iteration_ns'])}")
    return lines


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _or_dash(value: Any, text: Any) -> str:
    return "-" if value is None else str(text(value))


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.1f} ms"


def _mbit(rate_bps: int) -> str:
    return f"{rate_bps / 1e6:.0f} Mbit/s"


def _plain(text: object) -> str:
    """A text from a file or another viewer, without what would steer the terminal."""
    return one_line(str(text))
