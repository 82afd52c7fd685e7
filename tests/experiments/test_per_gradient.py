"""Waits and transfers per gradient, from rows written here."""

from __future__ import annotations

from pathlib import Path

import per_gradient
import pytest
from recordings import MS, transfer, write_recording

from byteprophet.bench import Case
from byteprophet.errors import UserError
from byteprophet.report.plot import save


def recorded(tmp_path: Path) -> per_gradient.Recorded:
    rows = [transfer(1, 1, ready_ns=0, sent_ns=0, acked_ns=0, pulled_ns=99 * MS)]  # warm-up
    for iteration, more in ((6, 0), (7, 2), (8, 40)):
        begin = iteration * 1000 * MS
        times = {
            "ready_ns": begin,
            "sent_ns": begin + (3 + more) * MS,
            "acked_ns": begin + 50 * MS,
            "pulled_ns": begin + 60 * MS,
        }
        rows.append(transfer(2, iteration, size_bytes=10, **times))
        # Its second partition is sent later and pulled later.
        later = {**times, "sent_ns": begin + 50 * MS, "pulled_ns": begin + 70 * MS}
        rows.append(transfer(2, iteration, size_bytes=5, **{**later, "key": (2 << 16) + 1}))
        urgent = {name: time + 20 * MS for name, time in times.items()}
        rows.append(transfer(1, iteration, size_bytes=8, **urgent))
    # What has no place in forward order is no gradient; what was cut off has no time to pull it.
    rows.append(transfer(9, 8, priority=0, pulled_ns=1))
    begin = 9000 * MS
    rows.append(transfer(1, 9, ready_ns=begin, sent_ns=begin + MS, acked_ns=0, pulled_ns=0))
    write_recording(tmp_path, rows, [], measured=(6000 * MS, 9000 * MS))
    return per_gradient.Recorded(Case("resnet50", "prophet", 10**9), tmp_path)


def test_medians_over_iterations_in_forward_order(tmp_path: Path) -> None:
    row = per_gradient.row_of(recorded(tmp_path))
    names = ("order", "size_bytes", "ready_ns", "wait_ns", "transfer_ns")
    assert [tuple(gradient[name] for name in names) for gradient in row["gradients"]] == [
        (0, 8, 20 * MS, 5 * MS, 55 * MS),
        (1, 15, 0, 5 * MS, 65 * MS),
    ]
    assert (row["mean_wait_ns"], row["mean_transfer_ns"]) == (5 * MS, 60 * MS)


def test_the_picture(tmp_path: Path) -> None:
    row = per_gradient.row_of(recorded(tmp_path))
    save(per_gradient.draw([row, {**row, "scheduler": "fifo"}]), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    cells = [list(column.cells) for column in per_gradient._table([row]).columns]
    assert [cell[0] for cell in cells[:5]] == ["prophet", "5.0", "26", "60.0", "125"]


def test_stock_has_no_gradients(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stock records nothing"):
        per_gradient.main(["--schedulers", "stock", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
