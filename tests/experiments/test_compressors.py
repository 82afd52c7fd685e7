"""What is stated for compressed gradients, and what is printed of it; no job runs here."""

from __future__ import annotations

from pathlib import Path

import compressors
import pytest
from compressors_worker import COMPRESSORS, stated_bytes, strategy_of
from model import ResNet
from rich.console import Console

from byteprophet.errors import UserError
from byteprophet.job.strategy_file import read_strategy_file, write_strategy

NAMED = dict(ResNet().named_parameters())
LARGE = {name: each for name, each in NAMED.items() if each.dim() > 1}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_what_is_large_is_compressed(name: str, tmp_path: Path) -> None:
    used = strategy_of(NAMED, COMPRESSORS[name])
    expected = set(LARGE) if name != "none" else set()
    assert set(used.strategy.compressor_of) == expected
    write_strategy(tmp_path / "strategy.json", used)
    assert read_strategy_file(tmp_path / "strategy.json") == used


def test_bytes_are_stated_for_what_travels() -> None:
    small = sum(each.nbytes for name, each in NAMED.items() if name not in LARGE)
    dense = sum(each.nbytes for each in LARGE.values())
    states = {
        name: stated_bytes(strategy_of(NAMED, rule), NAMED, 2) for name, rule in COMPRESSORS.items()
    }
    assert states["none"] == small + dense
    assert states["onebit"] == pytest.approx(small + dense / 32, rel=0.02)
    assert states["topk"] == pytest.approx(small + dense * 0.2, rel=0.02)
    assert states["randomk"] == pytest.approx(small + dense * 0.5, rel=0.02)
    assert states["dithering"] == pytest.approx(small + dense / 8, rel=0.02)
    factors = sum(4 * (each.shape[0] + each[0].numel()) * 4 for each in LARGE.values())
    assert states["powersgd"] == small + factors


def test_measured_is_put_beside_stated() -> None:
    row = {
        "compressor": "none", "seed": 1, "stated_bytes": 4e6, "payload_bytes": 4.1e6,
        "interface_bytes": 4.2e6, "accuracy": 0.97, "iteration_ns": 5e6,
    }  # fmt: skip
    other = {**row, "compressor": "topk", "stated_bytes": 1e6, "accuracy": 0.965}
    console = Console(width=120, record=True)
    console.print(compressors.table_of([row, other], {"topk": 4_000_000}))
    lines = console.export_text().splitlines()
    assert any(line.split()[:5] == ["none", "4.000", "1.025", "1.050", "1.0"] for line in lines)
    assert any(line.split()[4:7] == ["4.0", "96.50%", "-0.50"] for line in lines)
    assert any(line.split()[-2:] == ["5", "4"] for line in lines)


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="--compressors: there is no 'x'; have none, topk"):
        compressors.main(["--compressors", "x"])
    with pytest.raises(UserError, match="--iterations 6: must be more than 6"):
        compressors.main(["--iterations", "6"])
