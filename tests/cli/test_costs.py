from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.cli import costs
from byteprophet.cli.main import run_cli


@pytest.mark.parametrize(("rank", "status", "measured"), [("0", 2, False), ("1", 0, True)])
def test_rank_0_checks_its_file_before_the_job_measures(
    rank: str,
    status: int,
    measured: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another rank writes none: the folder need not be there."""
    calls: list[str] = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(costs, "collect_in_job", lambda device, *_: calls.append(device))
    out = tmp_path / "nowhere" / "costs.json"
    assert run_cli(["costs", "collect", "--out", str(out)]) == status
    assert bool(calls) == measured
    assert (f"{out}: " in capsys.readouterr().err) == (not measured)


def test_several_ranks_on_a_node_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their times would be those of links in the node, and count for ranks between nodes."""
    monkeypatch.setattr(costs, "collect_in_job", lambda *_: None)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    call = ["costs", "collect", "--out", str(tmp_path / "costs.json")]
    for ranks, status in (("8", 2), ("1", 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert run_cli(call) == status
    printed = capsys.readouterr().err
    assert "8 ranks of the job share this node" in printed
    assert printed.count("\n") == 1
