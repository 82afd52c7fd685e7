from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.cli import costs
from byteprophet.cli.main import run_cli
from byteprophet.simulate.costs import collect


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


@pytest.mark.parametrize("ranks", ["", "two", "0"])
def test_a_job_without_a_number_of_ranks_is_refused(
    ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert run_cli(["costs", "collect", "--out", str(tmp_path / "costs.json")]) == 2
    assert f"WORLD_SIZE is {ranks!r}: start it with torchrun" in capsys.readouterr().err


def test_a_gpu_that_others_have_filled_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")

    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(collect._Collector, "_memory", full)
    out = tmp_path / "costs.json"
    assert run_cli(["costs", "collect", "--device", "cpu", "--out", str(out)]) == 2
    assert "the GPU has too little free memory: CUDA out of memory" in capsys.readouterr().err
