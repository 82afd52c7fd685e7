"""A line of the table: what its columns must be to each other."""

from __future__ import annotations

from allreduce_model import COLUMNS, row


def test_a_line_keeps_the_order_of_limits() -> None:
    line = dict(zip(COLUMNS, row("resnet50", 2, 1.0, 300_000), strict=True))
    figures = {name: float(line[name]) for name in COLUMNS[2:]}
    assert figures["all-reduce"] == 1
    # By hand: forward is a third of the compute and either half of the all-reduce is half of it.
    assert (figures["Eq. 7"], figures["Eq. 8"]) == (1.167, 1.333)
    assert figures["bound"] <= figures["dear-planned"] <= figures["dear"] <= figures["allreduce"]
    assert figures["Eq. 7"] <= figures["free"] <= figures["dear"]
    for ratio in ("dear / ideal", "planned / bound", "allreduce / planned"):
        assert figures[ratio] >= 1
