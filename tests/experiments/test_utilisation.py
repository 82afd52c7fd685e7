"""Compute and link utilisation: arithmetic on small recordings, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import counters
import numpy as np
import pytest
import utilisation
from recorded import Recorded
from recordings import MS, transfer, write_recording

from byteprophet.bench import Case
from byteprophet.errors import UserError
from byteprophet.network.rate import PAYLOAD_SHARE
from byteprophet.report.plot import save

S = 1000 * MS


def test_transfers_take_turns_on_the_link() -> None:
    # 8 Mbit/s: a byte per microsecond. The second came before the first was through.
    done = np.array([900, 100, 1000]) * 1000
    intervals = utilisation.occupied(done, np.array([300, 50, 200]), 8_000_000)
    assert (intervals / 1000).tolist() == [[50, 100], [500, 800], [800, 1000]]


def test_shares_of_bins() -> None:
    curve = utilisation.running_total(np.array([[10, 20], [20, 25], [40, 60]]))
    edges = np.array([0, 10, 30, 50, 70])
    assert utilisation.shares(curve, edges).tolist() == [0.0, 0.75, 0.5, 0.5]
    # As large as stamps of a machine that has been up for a year.
    late = 31_536_000 * S
    moved = (curve[0] + late, curve[1])
    assert utilisation.shares(moved, edges + late).tolist() == [0.0, 0.75, 0.5, 0.5]


def test_a_row_of_a_recorded_job(tmp_path: Path) -> None:
    link_bps = round(1e9 / PAYLOAD_SHARE)  # a payload of 125 bytes per microsecond
    rows = [
        # Half of the second is pushed, a quarter pulled; a transfer of warm-up does not count.
        transfer(1, 5, ready_ns=0, sent_ns=0, acked_ns=1, pulled_ns=2),
        transfer(
            1,
            6,
            size_bytes=62_500_000,
            ready_ns=S,
            sent_ns=S,
            acked_ns=S + 600 * MS,
            pulled_ns=S + 2 * S,
        ),
        transfer(
            2,
            6,
            size_bytes=31_250_000,
            ready_ns=0,
            sent_ns=0,
            acked_ns=S // 4,
            pulled_ns=S + 700 * MS,
        ),
    ]
    samples = [[S, 0, 0], [2 * S, link_bps // 80, link_bps // 40]]
    busy = [(0, S // 2), (S, S + 200 * MS), (S + 500 * MS, S + 600 * MS)]
    write_recording(tmp_path, rows, busy, measured=(S, 2 * S))
    (tmp_path / "counters.json").write_text(json.dumps(samples))
    case = Case("resnet50", "prophet", link_bps)
    row = utilisation.row_of(Recorded(case, tmp_path))
    expected = {
        "compute": 0.3,
        "push": 0.5,
        "pull": 0.25,
        "push_counters": 0.1,
        "pull_counters": 0.2,
    }
    assert row["average"] == pytest.approx(expected, abs=0.001)
    assert np.mean(row["bins"]["push"]) == pytest.approx(0.5, abs=0.03)
    assert utilisation.megabytes_per_s(row) == pytest.approx(link_bps / 80e6, rel=1e-3)
    others = Case("resnet50", "stock", link_bps)
    stock = utilisation.row_of(Recorded(others, tmp_path))
    assert set(stock["average"]) == {"compute", "push_counters", "pull_counters"}
    save(utilisation.draw([stock, row]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_counters_leave_loopback_out() -> None:
    heading = "Inter-|   Receive\n face |bytes\n"
    lines = "    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 700 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n"
    assert counters.counted(heading + lines) == (30, 700)


def test_an_unlimited_link_has_no_utilisation(tmp_path: Path) -> None:
    arguments = ["--bandwidth", "unlimited", "--out", str(tmp_path), "--runs", str(tmp_path)]
    with pytest.raises(UserError, match="no utilisation"):
        utilisation.main(arguments)
