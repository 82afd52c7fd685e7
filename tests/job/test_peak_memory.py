"""Files with the most memory that ranks took."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.job.peak_memory import read_peak, write_peak


def test_the_highest_of_all_ranks_counts_and_none_may_be_missing(tmp_path: Path) -> None:
    write_peak(tmp_path, 0, 100)
    with pytest.raises(UserError, match=r"memory-1.json: is missing: .* let the script train"):
        read_peak(tmp_path, 2)
    write_peak(tmp_path, 1, 120)
    assert read_peak(tmp_path, 2) == 120


@pytest.mark.parametrize("text", ["[]", '{"schema": 1, "peak_bytes": -1}', '{"peak_bytes": 5}'])
def test_a_wrong_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "memory-0.json").write_text(text)
    with pytest.raises(UserError, match=r"memory-0.json: peak_bytes must be a positive integer"):
        read_peak(tmp_path, 1)
