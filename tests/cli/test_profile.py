"""``byteprophet profile``: what it prints of a run, and what it says where there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from byteprophet.cli.main import run_cli
from byteprophet.profile import Burst, Profile, TensorProfile
from byteprophet.timeline.events import Events, Origin, events_path, save_events
from byteprophet.timeline.read_events import load_rank
from byteprophet.timeline.tables import TRANSFER, TRANSFERS
from byteprophet.workload import parse_toml

MS = 1_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two tensors, of which the second waits 5 ms in each of ten iterations."""
    profile = Profile(
        scheduler="p3",
        workers=2,
        rank=0,
        iterations=5,
        batch_size=None,
        forward_ns=4 * MS,
        backward_ns=30 * MS,
        tensors=(
            TensorProfile(
                name="first",
                size_bytes=10,
                forward_order=0,
                ready_ns=20 * MS,
                spread_ns=0,
                forward_ns=3 * MS,
                burst=1,
            ),
            TensorProfile(
                name="second",
                size_bytes=8,
                forward_order=1,
                ready_ns=0,
                spread_ns=0,
                forward_ns=1 * MS,
                burst=0,
            ),
        ),
        bursts=(
            Burst(ready_ns=0, spread_ns=0, tensors=1, size_bytes=8),
            Burst(ready_ns=20 * MS, spread_ns=0, tensors=1, size_bytes=10),
        ),
    )
    profile.write(tmp_path / "profile.json")
    transfers = np.zeros(20, TRANSFER)
    for iteration in range(10):
        begin = 1000 * MS * (iteration + 1)
        for tensor, times in enumerate(((20, 25, 40), (0, 0, 30))):
            row = transfers[2 * iteration + tensor]
            row["key"], row["iteration"], row["priority"] = tensor << 16, iteration + 1, -1 - tensor
            row["ready_ns"], row["sent_ns"], row["acked_ns"] = (begin + t * MS for t in times)
            row["pulled_ns"] = row["acked_ns"]
    save_events(
        events_path(tmp_path, TRANSFERS, "worker-0"),
        Events(TRANSFERS, Origin("worker-0", 0), transfers, {}),
    )
    (tmp_path / "config.toml").write_text(
        'scheduler = "p3"\nworkers = 2\nservers = 1\n'
        "partition_bytes = 100000\nbandwidth_bps = 1000000000\n"
        "[settings]\npartition_bytes = 100000\noutstanding_messages = 2\n"
    )
    return tmp_path


def test_tables_do_not_need_the_picture(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "profile.png").mkdir()
    assert run_cli(["profile", str(run)]) == 0
    said = capsys.readouterr().err
    assert "profile.png: cannot be written: Is a directory; there is no picture" in said


def test_tables_and_picture(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["profile", str(run)]) == 0
    printed = capsys.readouterr()
    assert "2 tensors" in printed.out
    assert "batch not known" in printed.out
    assert printed.err == f"picture: {run / 'profile.png'}\n"
    assert (run / "profile.png").read_bytes().startswith(b"\x89PNG")


def test_as_a_workload(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["profile", str(run), "--toml"]) == 0
    workload = parse_toml(capsys.readouterr().out, "printed")
    assert [tensor.name for tensor in workload.tensors] == ["first", "second"]
    assert [tensor.size_bytes for tensor in workload.tensors] == [12, 8]
    assert workload.ready_ns() == (30 * MS, 10 * MS)
    assert workload.forward_ns == 4 * MS


def test_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["profile", str(run), "--json"]) == 0
    assert capsys.readouterr().out == (run / "profile.json").read_text()


def test_waits(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["profile", str(run), "--waits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["waits"], found["median_ns"], found["p99_ns"]) == (5, 5 * MS, 5 * MS)
    assert found["window_bytes"] == 200_000
    assert found["allowed_ns"] == int(300_000 * 8e9 / 956_400_000)
    assert run_cli(["profile", str(run), "--waits"]) == 0
    assert "5 new most urgent partitions of 10 waited 5.00 ms" in capsys.readouterr().out


def test_local_ranks_share_their_workers_rate(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 2 is of worker 1; worker 2's rate is none of its business."""
    config = (run / "config.toml").read_text()
    own = "[worker_bandwidth_bps]\n1 = 500000000\n2 = 10000000\n"
    (run / "config.toml").write_text("local_ranks = 2\n" + config + own)
    transfers = load_rank(run, TRANSFERS, 0).rows
    save_events(
        events_path(run, TRANSFERS, "worker-1.0"),
        Events(TRANSFERS, Origin("worker-1.0", 2), transfers, {}),
    )
    assert run_cli(["profile", str(run), "--waits", "--json", "--rank", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["allowed_ns"] == int(300_000 * 8e9 / 478_200_000)


def test_slower_servers_answer_later(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two workers share the link of a server at 250 Mbit/s."""
    path = run / "config.toml"
    path.write_text(path.read_text() + "[server_bandwidth_bps]\n0 = 250000000\n")
    assert run_cli(["profile", str(run), "--waits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["allowed_ns"] == int(300_000 * 8e9 / 119_550_000)


def test_a_link_that_changed_must_be_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "config.toml"
    path.write_text('steps = ["worker-0=100mbit@5s"]\n' + path.read_text())
    assert run_cli(["profile", str(run), "--waits"]) == 2
    assert "its links changed while it ran: give --bandwidth" in capsys.readouterr().err
    assert run_cli(["profile", str(run), "--waits", "--bandwidth", "1gbit"]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["nowhere"], 2, "nowhere: there is no such run directory"),
        (["RUN", "--rank", "3"], 2, "profile-3.json: there is no such file"),
        (["RUN", "--rank", "3", "--waits"], 2, "run the job with --record"),
        (["RUN", "--toml", "--json"], 2, "--toml"),
        (["RUN", "--waits", "--bandwidth", "fast"], 2, "--bandwidth"),
        (["RUN", "--waits", "--bandwidth", "unlimited"], 2, "what a wait may be needs a limit"),
        (["RUN", "--bandwidth", "1gbit"], 2, "--bandwidth: needs --waits"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    arguments: list[str],
    status: int,
    named: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(run) if argument == "RUN" else argument for argument in arguments]
    assert run_cli(["profile", *given]) == status
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
