"""The results of a table as markdown: rates, ratios between policies, simulated rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paper_table import PAPER_NAMES

from byteprophet.bench.grid_figures import CPU_LIMIT
from byteprophet.bench.grid_phases import PROPHET

NOTHING = "-"
_STOCK = "stock"
Figures = Mapping[str, Any]


def to_markdown(result: Figures) -> str:
    """Tables with the same columns, and what must be known to read them."""
    rows: Sequence[Figures] = result["rows"]
    names = list(rows[0]["policies"])
    others = [name for name in names if name != PROPHET]
    parts = [
        f"# {result['title']}",
        _about(result),
        "## Samples/s per worker",
        _table(
            [result["axis"], *(_heading(rows, name) for name in names), "bound"],
            [
                [row["label"], *(_rate(row, name) for name in names), f"{row['bound_rate']:g}"]
                for row in rows
            ],
        ),
        "## prophet's speed over the others'",
        "Each within its rounds, with the 95% interval; the paper's ratio in brackets.",
        _each(result, others, _over),
    ]
    if any(row["policies"][_STOCK]["rate"] for row in rows):
        parts += [
            "## Rates over stock's",
            "Of the medians; the paper's over its FIFO in brackets, where it prints that.",
            _each(result, [name for name in names if name != _STOCK], _over_stock),
        ]
    if "simulated_rate" in rows[0]["policies"][PROPHET]:
        parts += [
            "## Simulated, samples/s per worker",
            "By `byteprophet.engine`, which knows nothing of two cores. No measurement.",
            _each(result, names, lambda row, name: f"{row['policies'][name]['simulated_rate']:g}"),
        ]
    return "\n\n".join([*parts, *result["notes"]]) + "\n"


def _about(result: Figures) -> str:
    cores = " or ".join(str(machine["cores"]) for machine in result["machines"])
    lines = [
        "Medians of paced jobs (timed compute, real bytes), the paper's figures in brackets. The "
        "bound is what no schedule exceeds on these links.",
        f"`*`: at least {CPU_LIMIT:.0%} of all {cores} cores in use; the "
        "processor may be the limit, not the link.",
        "The paper ran ByteScheduler as `bytescheduler-reduce` is here and P3 with 4 MB "
        "partitions; the columns `bytescheduler` and `p3` are at their authors' settings.",
    ]
    if result["slowed"] != 1:
        lines.append(
            f"Compute took {result['slowed']} times as long, on links {result['slowed']} times "
            "slower; rates are given as if neither were so."
        )
    return " ".join(lines)


def _each(result: Figures, names: Sequence[str], cell: Callable[[Figures, str], str]) -> str:
    return _table(
        [result["axis"], *names],
        [[row["label"], *(cell(row, name) for name in names)] for row in result["rows"]],
    )


def _heading(rows: Sequence[Figures], name: str) -> str:
    """With whose figures stand in brackets, where they are another's."""
    compared = PAPER_NAMES.get(name)
    printed = any(row["policies"][name]["paper_rate"] for row in rows)
    return f"{name} (paper's {compared})" if compared and printed else name


def _rate(row: Figures, name: str) -> str:
    policy = row["policies"][name]
    text = NOTHING
    if policy["rate"] is not None:
        text = f"{policy['rate']:g}" + "*" * policy["cpu_limited"]
    if policy["paper_rate"] is not None:
        text += f" ({policy['paper_rate']:g})"
    return text


def _over(row: Figures, name: str) -> str:
    policy = row["policies"][name]
    over = policy["over"]
    text = NOTHING
    if over is not None:
        text = f"{over['value']:.2f} [{over['low']:.2f}, {over['high']:.2f}]"
    if policy["paper_over"] is not None:
        text += f" ({policy['paper_over']:.2f})"
    return text


def _over_stock(row: Figures, name: str) -> str:
    policy, stock = row["policies"][name], row["policies"][_STOCK]
    text = NOTHING
    if policy["rate"] is not None and stock["rate"] is not None:
        text = f"{policy['rate'] / stock['rate']:.2f}"
    if policy["paper_rate"] is not None and stock["paper_rate"] is not None:
        text += f" ({policy['paper_rate'] / stock['paper_rate']:.2f})"
    return text


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
