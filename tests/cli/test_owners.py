"""``--owners``: what it may be, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.cli.owners import parse_owners
from byteprophet.job.owners import Owners


def test_what_it_may_be() -> None:
    assert parse_owners("equal", [None, 10**9]) == Owners.equal(2)
    assert parse_owners("2,0,1", [None] * 3).weights == (2, 0, 1)
    assert parse_owners("auto", [10**9] * 3 + [5 * 10**8]).weights == (1, 1, 1, 0)
    # Two ranks share each link.
    assert parse_owners("auto", [10**9, 5 * 10**8], local_ranks=2).weights == (1, 1, 0, 0)
    assert parse_owners("auto", [10**9, None, None]).weights == (0, 1, 1)
    assert parse_owners("auto", [None] * 3) == Owners.equal(3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--owners", "1,1", "true"], "--owners: with servers, ranks own nothing; use"),
        (
            ["run", "--servers", "0", "--workers", "3", "--owners", "1,1", "true"],
            "owners 1,1: 2 weights for 3 ranks: give one for each rank",
        ),
        (
            ["run", "--servers", "0", "--owners", "0,0", "true"],
            "owners 0,0: all weights are 0, so nobody would sum",
        ),
        (
            ["run", "--servers", "0", "--owners", "1,-1", "true"],
            "--owners '1,-1': use one whole number for each rank, as 1,1,1,0, equal or auto",
        ),
        (
            ["bench", "--workload", "resnet50", "--runtime", "ddp", "--owners", "auto"],
            "--owners: only for allreduce, dear, dear-planned; name one with --runtime",
        ),
        (
            ["bench", "--workload", "resnet50", "--runtime", "dear", "--owners", "1,2,3"],
            "owners 1,2,3: 3 weights for 2 ranks: give one for each rank",
        ),
        (["bench", "--grid", "default", "--owners", "auto"], "--owners cannot be combined with"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not [*tmp_path.iterdir()]


def test_a_strategy_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--servers", "0", "--strategy", "x.json", "--owners", "auto", "true"]
    assert run_cli(arguments) == 2
    assert "--owners is what --strategy says" in capsys.readouterr().err
