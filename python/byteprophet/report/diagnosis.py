"""Prints a diagnosis: where the time went, its causes, stragglers, and changes between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from byteprophet.report.console import lines_text

_STEPS = 8
# As the page calls them. A column is as wide as its longest line.
_PARTS = {
    "computation": "other\ncomputation",
    "communication": "waiting for\ncommunication",
    "others": "waiting for\nother workers",
}

Data = Mapping[str, Any]
"""As ``byteprophet report --json`` has it."""


def diagnosis_tables(data: Data) -> Group:
    """All tables, with notes on what the run does not have."""
    parts: list[RenderableType] = [_headline(data), _breakdown(data), _path(data)]
    if data["stragglers"]["meetings"]:
        parts.append(_stragglers(data))
    if data["against"]:
        parts.append(_comparison(data["against"]))
    parts += [f"note: {note}" for note in data["notes"]]
    if data["lost"] or data["cut_off"]:
        parts.append(f"{data['lost']} rows lost; cut off: {', '.join(data['cut_off']) or 'none'}")
    return Group(*parts)


def _headline(data: Data) -> Text:
    times = data["iteration_ns"]
    lines = [
        f"{data['run']}: {len(data['iterations'])} iterations of {_ms(times['median'])} ms "
        f"(eight in ten take {_ms(times['p10'])} to {_ms(times['p90'])})"
    ]
    settled = data["settled"]
    if settled["iterations"] < len(data["iterations"]):
        lines.append(
            f"The bound and the replay are of the last {settled['iterations']} of them, of "
            f"{_ms(settled['median_ns'])} ms; all else is of all:"
        )
    if data["bound_ns"]:
        lines.append(
            f"{settled['median_ns'] / data['bound_ns']:.3f} x the bound: no schedule of the same "
            f"bytes on these links is faster than {_ms(data['bound_ns'])} ms"
        )
    if data["prediction"]:
        lines.append(f"A replay of them has an error of {data['prediction']['error']:+.1%}")
    if data["not_predicted"]:
        bound = "" if data["bound_ns"] else "; so there is no bound"
        lines.append(f"Not replayed: {data['not_predicted']}{bound}")
    return lines_text(lines)


def _breakdown(data: Data) -> Group:
    found = data["breakdown"]
    times_ns = list(zip(*found["mean_ns"], strict=True))  # by part
    there = [index for index, by_worker in enumerate(times_ns) if any(by_worker)]
    columns = [_PARTS.get(found["parts"][index], found["parts"][index]) for index in there]
    title, table = _table(
        "Where an iteration spends its time, means in ms", "worker", *columns, "sum"
    )
    for role, parts_ns in zip(data["workers"], found["mean_ns"], strict=True):
        table.add_row(role, *(_ms(parts_ns[index]) for index in there), _ms(sum(parts_ns)))
    return Group(title, table)


def _path(data: Data) -> Group:
    path = data["path"]
    line = f"Critical path of {data['workers'][path['worker']]}: " + ", ".join(
        f"{row['kind']} {row['share']:.0%}" for row in path["kinds"] if row["share"] >= 0.005
    )
    title, table = _table(line, "", "what", "where", "ms", "share")
    for row in path["top"][:_STEPS]:
        values = _ms(row["mean_ns"]), f"{row['share']:.1%}"
        table.add_row(row["kind"], row["name"], row["where"], *values)
    return Group(title, table)


def _stragglers(data: Data) -> Group:
    found = data["stragglers"]
    title, table = _table(
        f"Who came last, in {found['meetings']} {found['source']}",
        *("worker", "last", "by ms", "p90 ms", "others waited,\nms per iteration"),
    )
    for index, role in enumerate(data["workers"]):
        table.add_row(
            role,
            f"{found['last'][index] / found['meetings']:.0%}",
            _ms(found["behind_ns"][index]),
            _ms(found["p90_ns"][index]),
            _ms(found["cost_ns"][index] / len(data["iterations"])),
        )
    return Group(title, table)


def _comparison(against: Data) -> Group:
    line = (
        f"Against {against['run']}: {against['ratio']:.3f} x its iteration "
        f"({against['ratio_low']:.3f} to {against['ratio_high']:.3f})"
    )
    title, table = _table(line, "", "this run", "the other", "change")
    waits = [{**row, "what": f"wait {row['what']}"} for row in against["waits"][:_STEPS]]
    parts = [row for row in against["parts"] if row["this"] or row["other"]]
    for row in [against["iteration"], *parts, *waits, *against["shares"]]:
        what = _PARTS.get(row["what"], row["what"]).replace("\n", " ")
        table.add_row(what, *_values(row))
    return Group(title, table, *(f"note: {note}" for note in against["notes"]))


def _values(row: Data) -> tuple[str, str, str]:
    this, other = row["this"], row["other"]
    in_ms = row["unit"] == "ns"
    texts = [
        "" if value is None else (f"{_ms(value)} ms" if in_ms else f"{value:.1%}")
        for value in (this, other)
    ]
    if this is None or other is None:
        return texts[0], texts[1], ""
    change = this - other
    return texts[0], texts[1], f"{change / 1e6:+.1f} ms" if in_ms else f"{change:+.1%}"


def _table(title: str, *columns: str) -> tuple[str, Table]:
    """A line above the table, which may be longer than it is wide."""
    table = Table(box=box.SIMPLE_HEAD)
    texts: Sequence[str] = ("", "what", "where", "worker")
    for column in columns:
        header = lines_text(column.split("\n"))
        table.add_column(header, justify="left" if column in texts else "right")
    return title, table


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.1f}"
