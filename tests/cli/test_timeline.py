"""``byteprophet timeline``: of real recorded jobs and of others' traces; one line for all else."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.cli.main import run_cli
from byteprophet.timeline.read_chakra import read_chakra
from byteprophet.timeline.read_events import load_rank, load_run
from byteprophet.timeline.tables import TRANSFERS, Kind
from byteprophet.workload import Tensor, Workload, to_toml

from ..timeline.perfetto_rules import broken_rules, read_trace

MS = 1_000_000

STEP = {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 1, "tid": 2,
    "ts": 1700000000000000.125, "dur": 10.5,
}  # fmt: skip
PUSH = {
    "ph": "X", "cat": "Comm", "pid": "Comm.t", "name": "Comm.t.PUSH", "tid": "65536",
    "ts": 1700000000000002, "dur": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    tensors = tuple(Tensor(f"layer{n}.weight", 100_000, 3 * MS, 6 * MS, n // 2) for n in range(4))
    (directory / "small.toml").write_text(to_toml(Workload("small", 4, tensors)))
    case = Case(str(directory / "small.toml"), "prophet", None, partition_bytes=65536)
    plan = Plan((case,), iterations=5, rounds=1, record=True, idle_s=0.0)
    (row,) = run_bench(plan, directory / "runs", False, lambda _: None)
    return Path(row["run"])


@pytest.fixture
def kineto(tmp_path: Path) -> Path:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [STEP]}))
    return path


@pytest.fixture
def comm(tmp_path: Path) -> Path:
    path = tmp_path / "comm.json"
    path.write_text(json.dumps({"traceEvents": [PUSH]}))
    return path


@pytest.mark.job
def test_a_recorded_job_for_perfetto(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["timeline", str(run), "--format", "perfetto", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["written"] == [str(run / "timeline.json.gz")]
    trace = read_trace(run / "timeline.json.gz")
    assert broken_rules(trace) == []
    processes = {
        event["pid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    assert {"worker-0", "worker-1"} <= set(processes.values())
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"].split()[0]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    slices = Counter(
        (processes[event["pid"]], tracks[event["pid"], event["tid"]])
        for event in trace["traceEvents"]
        if event["ph"] == "X"
    )
    for rank in range(2):
        rows = load_rank(run, TRANSFERS, rank).rows
        assert np.all(rows["pulled_ns"] > rows["ready_ns"])
        assert len(rows) > 5 * 4 * 2
        for track in ("queued", "push", "pull"):
            assert slices[f"worker-{rank}", track] == len(rows)
    starts = [event for event in trace["traceEvents"] if event["ph"] == "s"]
    transfers = sum(len(e.rows) for e in load_run(run) if e.table is TRANSFERS)
    # An answer that overtakes its acknowledgement leaves no time for one of the two.
    assert transfers * 0.5 < len(starts) == report["arrows"] <= transfers
    assert sum(slices.values()) == report["slices"]


@pytest.mark.job
def test_all_of_chakras_traces_are_written_or_none(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.1.et").mkdir()
    assert run_cli(["timeline", str(run), "--format", "chakra", "--out", str(tmp_path / "x")]) == 2
    assert "x.1.et: cannot be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.1.et"]


@pytest.mark.job
def test_a_recorded_job_for_chakra(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["timeline", str(run), "--format", "chakra", "--out", str(tmp_path / "x")]) == 0
    assert capsys.readouterr().out == f"written: {tmp_path}/x.0.et, {tmp_path}/x.1.et\n"
    for rank in range(2):
        rows = load_rank(run, TRANSFERS, rank).rows
        back = read_chakra(tmp_path / f"x.{rank}.et").rows
        for kind, begin, end in (
            (Kind.SEND, "sent_ns", "acked_ns"),
            (Kind.RECEIVE, "acked_ns", "pulled_ns"),
        ):
            read = back[back["kind"] == kind]
            assert sorted(read["size_bytes"].tolist()) == sorted(rows["size_bytes"].tolist())
            took_ns = read["end_ns"] - read["begin_ns"]
            assert sorted(took_ns.tolist()) == sorted((rows[end] - rows[begin]).tolist())
    assert run_cli(["timeline", f"{tmp_path}/x.0.et", f"{tmp_path}/x.1.et"]) == 0
    assert "worker-1" in capsys.readouterr().out


@pytest.mark.job
def test_what_a_run_has(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["timeline", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    told = {(source["role"], source["table"]): source for source in report["sources"]}
    rows = load_rank(run, TRANSFERS, 0).rows
    mine = told["worker-0", "transfers"]
    assert (mine["rows"], mine["lost"], mine["whole"]) == (len(rows), 0, True)
    assert mine["end_ns"] == rows["pulled_ns"].max()
    assert mine["size_bytes"] == rows["size_bytes"].sum()
    assert mine["iterations"] == rows["iteration"].max()


def test_foreign_files_together(
    kineto: Path, comm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind counts its workers; a rank that a file says stays."""
    said = tmp_path / "said.json"
    trace = {"schemaVersion": 1, "traceEvents": [STEP], "distributedInfo": {"rank": 5}}
    said.write_bytes(gzip.compress(json.dumps(trace).encode()))
    others = [shutil.copy(path, path.with_name(f"other-{path.name}")) for path in (kineto, comm)]
    files = [str(path) for path in (kineto, comm, *others, said)]
    out = tmp_path / "all.json"
    assert run_cli(["timeline", *files, "--format", "perfetto", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [source["role"] for source in report["sources"]] == [
        "worker-0", "worker-0", "worker-1", "worker-1", "worker-5",
    ]  # fmt: skip
    assert report["sources"][0]["kinds"] == {"iteration": 1}
    assert (report["slices"], report["arrows"]) == (5, 0)
    assert broken_rules(read_trace(out)) == []
    assert run_cli(["timeline", *files]) == 0
    table = capsys.readouterr().out
    assert "1 iteration" in table
    assert "1 send" in table


def written(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("t.json", b"", "is empty"),
        ("t.json", b" \n", "is empty"),
        ("t.json", b'{"schemaVersion": 1, "traceEvents": [{"ph"', "is cut off or not JSON"),
        (
            "t.json.gz",
            gzip.compress(b'{"schemaVersion": 1}', mtime=0)[:-9],
            "is cut off or not gzip",
        ),
        ("t.json.gz", b"\x1f\x8b\x08\x00rubbish", "is cut off or not gzip"),
        ("t.json", b'{"schemaVersion": "\xff"}', "is not UTF-8 text (byte 19)"),
        ("t.json", b"[" * 100_000, "is not a trace"),
        ("t.json", b"{" + b"1" * 5000, "is cut off or not JSON"),
        ("t.json", b"[" + b"1" * 5000 + b"]", "is not a trace"),
        (
            "t.json",
            {"traceEvents": [{"ph": "X", "cat": "blink"}]},
            "is not a file that can be read",
        ),
        ("t.json", [1, 2], "is not a file that can be read"),
        ("t.json", {}, "is not a file that can be read"),
        ("t.json", {"schema": "1.1.1-chakra.0.0.4", "nodes": []}, "host trace of PyTorch has no"),
        ("t.py", b"print(1)", "is not a file that can be read"),
        ("t.et", b"", "is empty"),
        ("t.et", b"print(1)", "is cut off or not a Chakra trace"),
        ("t.arrows", b"", "is not a file of events"),
    ],
)
def test_files_that_are_nothing_are_one_line(
    name: str, content: Any, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / name, content)
    assert run_cli(["timeline", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"byteprophet: error: {path}: ")
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["KINETO", "--format", "svg"], "--format svg: must be perfetto or chakra"),
        (["KINETO", "--format", "chakra"], "--out: is needed"),
        (["KINETO", "--out", "x.json"], "--out: needs --format"),
        (["KINETO", "--format", "perfetto", "--out", "KINETO"], "is one of the files to read"),
        (["KINETO", "--format", "perfetto", "--out", "/no/x"], "/no/x: cannot be written: No such"),
        (
            ["KINETO", "--format", "chakra", "--out", "/no/x"],
            "/no/x.0.et: cannot be written: No such",
        ),
        (["nowhere.json"], "nowhere.json: there is no such file"),
        (["DIRECTORY"], "is neither a run directory nor has any in it"),
        ([], "RUN|FILE"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], named: str, kineto: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"KINETO": str(kineto), "DIRECTORY": str(kineto.parent)}
    before = kineto.read_bytes()
    assert run_cli(["timeline", *(places.get(word, word) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert kineto.read_bytes() == before
