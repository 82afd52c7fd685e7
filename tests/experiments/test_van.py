"""The comparison of the two ways of gradients: what runs, in which order, and the verdict.

Jobs are stated here, by how long an iteration takes; all else is real.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import van
from stated_jobs import MS, Ran

from byteprophet.bench import Case
from byteprophet.errors import JobFailed, UserError

from ..namespaces import why_not_permitted

pytestmark = pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")

SLOWER = "small-300mbit-2w1s"


def iteration_ns(case: Case) -> int:
    """Data links gain 4%, but for small tensors on two servers, where they lose as much."""
    if case.environment[van.VARIABLE] == "zmq":
        return 500 * MS
    return 520 * MS if case.servers == 2 else 480 * MS


def run(tmp_path: Path, cells: str, *options: str) -> None:
    van.main(["--cells", cells, "--policies", "fifo", "--out", str(tmp_path), *options])


def test_both_run_in_turn_and_only_what_is_missing(ran: Ran, tmp_path: Path) -> None:
    run(tmp_path, SLOWER)
    vans = ["zmq", "sockets"]
    assert [case.environment[van.VARIABLE] for case, _ in ran] == [*vans, *reversed(vans)]
    # The bytes take as long as the compute: 14 MB at 0.9564 of the rate.
    (compute_s,) = {_compute_s(case) for case, _ in ran}
    assert compute_s == pytest.approx(14e6 * 8 / (0.9564 * 300e6), rel=1e-3)
    run(tmp_path, SLOWER, "--rounds", "3")
    assert len(ran) == 6
    run(tmp_path, SLOWER, "--report")
    assert len(ran) == 6


def _compute_s(case: Case) -> float:
    workload = van.load(case.workload)
    return (workload.forward_ns + workload.backward_ns) / 1e9


@pytest.mark.parametrize(
    ("cells", "mean", "slower", "chosen"),
    [
        ("small-*-2w1s", "0.960", "none", "sockets"),
        # Five that gain do not outweigh one that loses for certain.
        ("small-*-2w1s,small-1gbit-2w2s", "0.971", "small-1gbit-2w2s under fifo", "zmq"),
        ("small-1gbit-2w2s", "1.040", "small-1gbit-2w2s under fifo", "zmq"),
    ],
)
def test_the_verdict(
    ran: Ran,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cells: str,
    mean: str,
    slower: str,
    chosen: str,
) -> None:
    run(tmp_path, cells, "--rounds", "1")
    assert ran
    said = capsys.readouterr().out
    assert f"sockets / zmq {mean}" in said
    assert re.search(rf"for certain: {re.escape(slower)}: the default should be {chosen}\n", said)


def test_different_parameters_are_an_error(ran: Ran, tmp_path: Path) -> None:
    run(tmp_path, SLOWER, "--rounds", "1")
    assert len(ran) == 2
    path = tmp_path / "jobs.jsonl"
    first, second = path.read_text().splitlines()
    other = second.replace('"ab"', '"cd"')
    path.write_text(f"{first}\n{other}\n")
    with pytest.raises(JobFailed, match=f"{SLOWER}: jobs ended with different parameters"):
        run(tmp_path, SLOWER, "--report")


def test_jobs_of_other_lengths_are_no_part_of_it(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their parameters differ: once, every later run and report failed."""
    run(tmp_path, SLOWER, "--rounds", "1", "--iterations", "2")
    path = tmp_path / "jobs.jsonl"
    path.write_text(path.read_text().replace('"ab"', '"cd"'))
    capsys.readouterr()
    run(tmp_path, SLOWER, "--rounds", "1")
    assert len(ran) == 4
    assert "sockets / zmq 0.960" in capsys.readouterr().out


def test_only_jobs_of_the_same_code_are_compared(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a change of the code and an interrupted run: one van is of each code."""
    run(tmp_path, SLOWER, "--rounds", "1")
    assert len(ran) == 2
    path = tmp_path / "jobs.jsonl"
    first, second = path.read_text().splitlines()
    code = json.loads(first)["code"]
    older = first.replace(code, "other").replace('"ab"', '"cd"')
    path.write_text(f"{older}\n{second}\n")
    capsys.readouterr()
    run(tmp_path, SLOWER, "--report")
    assert "nothing has run over both yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cells", "resnet51-*"], r"--cells 'resnet51-\*': matches no cell; --list lists them"),
        (["--policies", "stock"], "--policies: stock has no data links"),
        (["--rounds", "0"], "--rounds and --iterations must be at least 1"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        van.main([*arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
