"""``byteprophet trace``, as a user calls it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli

from ..timeline.perfetto_rules import broken_rules, read_trace
from ..traces.hand_made import annotation, operator, step, written
from ..traces.made_gpu import Job, write_profiles


@pytest.fixture
def profiles(tmp_path: Path) -> str:
    """The profiles of two ranks."""
    write_profiles(tmp_path / "profiles", Job())
    return str(tmp_path / "profiles")


def test_shows_times_uses_and_the_critical_path(
    profiles: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["trace", profiles]) == 0
    printed = capsys.readouterr().out
    for words in ("2 ranks, 4 iterations", "recorded", "replayed", "compute", "Critical path:"):
        assert words in printed
    assert "+0.00%" in printed
    assert "aten::linear" in printed


def test_figures_as_json(profiles: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_cli(["trace", profiles, "--json", "--data-parallel", "8", "--link-scale", "0.5"]) == 0
    )
    figures = json.loads(capsys.readouterr().out)
    assert figures["ranks"] == [0, 1]
    assert figures["matched"] == 16
    assert [one["step"] for one in figures["iterations"]] == [0, 1, 2, 3]
    assert abs(figures["error"]) < 0.001
    assert figures["changed"]["replayed_ns"] > figures["replayed_ns"]
    assert figures["changed"]["kept_ns"] == {}
    assert (figures["unmatched"], figures["changed"]["not_sized_ns"]) == (0, 0)


def test_a_cluster_says_where_ranks_are(profiles: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From NVLink to the network, and from there to one of half the rate."""
    times_ns = []
    for options in ([], ["--bandwidth", "100gbit"]):
        call = ["trace", profiles, "--json", "--cluster", "dgx-a100", "--data-parallel", "64"]
        assert run_cli([*call, *options]) == 0
        figures = json.loads(capsys.readouterr().out)
        times_ns.append(figures["changed"]["replayed_ns"])
    assert figures["replayed_ns"] < times_ns[0] < times_ns[1]


def test_says_what_is_not_as_in_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, kinds in enumerate((["all_reduce", "broadcast"], ["all_reduce"])):
        events = [step(0, 2000), operator(1, 0, 1990)]
        for at, kind in enumerate(kinds):
            long_us = 1 if at else 900
            events.append(annotation(2, 1000 * at, 1000 * at + long_us, f"gloo:{kind}"))
        info = {"rank": rank, "world_size": 2}
        written(tmp_path / f"{rank}.json", events, distributedInfo=info)
    options = ["--cluster", "dgx-a100", "--bandwidth", "1gbit"]
    assert run_cli(["trace", str(tmp_path), *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "1 not matched, because ranks recorded different numbers or sizes of them in a step"
        in printed
    )
    assert "there is no model of broadcast: 0.0 ms" in printed
    assert "Taken as large, because sizes are not recorded: 1.8 ms" in printed


def test_says_what_it_infers_and_what_is_so_in_the_long_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Launches wait for a GPU whose work is not in the profile; with slower kernels, all do."""
    full = Job(
        layers=40,
        kernel_us=100,
        operator_us=30,
        all_reduce_us=100,
        steps=3,
        reads_loss=False,
        queue=300,
        warm_up=12,
    )
    write_profiles(tmp_path / "full", replace(full, keeps_backlog=False))
    assert run_cli(["trace", str(tmp_path / "full")]) == 0
    assert "because it was launched before the trace and is not in it" in " ".join(
        capsys.readouterr().out.split()
    )
    write_profiles(tmp_path / "host", replace(full, kernel_us=20, all_reduce_us=40, warm_up=30))
    assert run_cli(["trace", str(tmp_path / "host"), "--compute-scale", "2"]) == 0
    printed = capsys.readouterr().out
    assert "in the long run" in printed
    assert "launched before the trace" not in printed


def test_writes_for_perfetto_and_chakra(
    profiles: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, chakra = tmp_path / "replay.json.gz", tmp_path / "job"
    assert run_cli(["trace", profiles, "--out", str(out), "--chakra", str(chakra)]) == 0
    assert f"written: {out}, {chakra}.0.et, {chakra}.1.et" in " ".join(
        capsys.readouterr().out.split()
    )
    trace = read_trace(out)
    assert broken_rules(trace) == []
    phases = {event["ph"] for event in trace["traceEvents"]}
    assert {"X", "s", "f"} <= phases
    assert run_cli(["trace", f"{chakra}.0.et", f"{chakra}.1.et"]) == 0
    assert "2 ranks, 4 iterations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pipeline", "4"], "--pipeline: a trace cannot be cut into other pipeline stages"),
        (["--bandwidth", "1gbit"], "--bandwidth: needs --cluster"),
        (["--to-cluster", "dgx-a100"], "--to-cluster: needs --cluster"),
        (["--cluster", "nowhere"], "cluster nowhere"),
        (["--cluster", "dgx-a100", "--to-cluster", "dgx-h100"], "has other GPUs"),
        (["--cluster", "dgx-a100", "--link-latency", "nan"], "--link-latency nan"),
        (["--cluster", "dgx-a100", "--bandwidth", "unlimited"], "--bandwidth: must be a rate"),
        (["--data-parallel", "0"], "--data-parallel 0"),
        (["--link-scale", "0"], "--link-scale 0.0"),
        (["--compute-scale", "nan"], "--compute-scale nan"),
        (["--group", "x"], "--group: needs --data-parallel"),
        (["--group", "x", "--data-parallel", "4"], "no process group x, only 0"),
        (["--out", "FILE"], "is one of the files to read"),
    ],
)
def test_one_line_for_what_cannot_be(
    options: list[str], said: str, profiles: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"{profiles}/rank1.json" if one == "FILE" else one for one in options]
    assert run_cli(["trace", profiles, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
