"""Each large graph is built and replayed in a process of its own; a line says what that took."""

from __future__ import annotations

import re

import graph_building
import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.graph import Kind


def test_a_line_per_graph(capsys: pytest.CaptureFixture[str]) -> None:
    graph_building.main(["--operations", "20000"])
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["graph", "operations", "dependencies", "build", "replay", "memory"]
    line = r"(.+?) +([\d,]+) +([\d,]+) +[\d.]+ s +[\d.]+ s +[\d,]+, +\d+ MB"
    found = [re.fullmatch(line, text) for text in lines]
    assert [match and match[1] for match in found] == ["job", "arrays", "one by one"]
    for match, least in zip(found, (20_000, 20_000, 2000), strict=True):
        assert match
        operations, dependencies = (int(match[n].replace(",", "")) for n in (2, 3))
        assert least <= operations < 1.5 * least
        assert dependencies > 1.5 * operations


def test_what_is_measured_is_labelled_gated_and_connected() -> None:
    for name in ("job", "arrays"):
        graph = graph_building.GRAPHS[name](20_000)
        assert (graph.labels.kind != Kind.OPERATION).all()
        assert (graph.labels.iteration >= 0).all()
        pushes = np.flatnonzero(graph.labels.kind == Kind.PUSH)
        assert len(graph.gated.operation) >= len(pushes) > 0
        assert (graph.device[pushes] >= 0).all()


def test_no_operations_are_refused() -> None:
    with pytest.raises(UserError, match="--operations 0: must be at least 1"):
        graph_building.main(["--operations", "0"])
