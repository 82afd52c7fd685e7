"""A measurement of costs that was interrupted goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.simulate.costs import collect
from byteprophet.simulate.costs.kept_passes import KeptPasses
from byteprophet.simulate.costs.table import CostTable, read_table


def test_an_interrupted_measurement_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "costs.json"
    passes: list[int] = []

    def measured(self: collect._Collector, *_: object) -> CostTable:
        passes.append(len(passes))
        if len(passes) == 3:
            raise KeyboardInterrupt
        return CostTable(self._source(), ((8, 8, 8, 100.0 - len(passes)),))

    monkeypatch.setattr(collect._Collector, "_pass", measured)
    command = ["costs", "collect", "--device", "cpu", "--out", str(out)]
    assert run_cli(command) == 130
    assert f"2 passes are kept beside {out}: the same command goes on" in capsys.readouterr().err
    assert run_cli(command) == 0
    assert "goes on after pass 2 of 4" in capsys.readouterr().err
    assert len(passes) == 5
    assert read_table(out).products == ((8, 8, 8, 95.0),)
    assert list(tmp_path.iterdir()) == [out]


def test_passes_of_another_device_are_refused_and_stay(tmp_path: Path) -> None:
    kept = KeptPasses(tmp_path / "costs.json")
    kept.keep(1, CostTable("one GPU"))
    assert [table.source for table in kept.read("one GPU")] == ["one GPU"]
    with pytest.raises(UserError, match="pass-1: an interrupted call has one GPU, and this one"):
        kept.read("another GPU")
    assert kept.count() == 1
