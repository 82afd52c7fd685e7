"""What ``ddp_own_tests.py`` says of results."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ddp_own_tests
import pytest
import torch
from ddp_own_tests import Ran, verdict

from byteprophet.errors import UserError


def ran(values: list[float], by: str = "ddp", **facts: Any) -> Ran:
    """A job whose rank r ended the script with ``values[r]``."""
    rows = [{"script": "one", "digest": str(value), "by": by, **facts} for value in values]
    return Ran(
        [{"one": row} for row in rows],
        [{"one": [torch.tensor([value])]} for value in values],
        Counter(),
    )


def test_bits_are_those_of_one_of_the_jobs_without_byteprophet() -> None:
    in_order, plain = ran([1.0, 2.0, 3.0]), ran([1.5, 2.0, 3.0])
    assert verdict("one", [in_order, plain], ran([1.0, 2.0, 3.0], "ours")) == "same"
    assert verdict("one", [in_order, plain], ran([1.5, 2.0, 3.0], "ddp")) == "DDP"
    differs = verdict("one", [in_order, plain], ran([1.0, 2.0, 3.25], "ours"))
    assert differs == "differs: rank 0, by up to 0.5"  # from the job without any hook
    # Each rank's bits are those of the same job.
    assert verdict("one", [in_order, plain], ran([1.5, 2.0, 3.25], "ours")).startswith("differs")


def test_errors_are_said_of_the_side_that_has_them() -> None:
    right, wrong = ran([1.0, 2.0]), ran([1.0, 2.0], error="ValueError()")
    assert verdict("one", [right], wrong) == "error: rank 0: ValueError()"
    assert verdict("one", [wrong], right) == "error: without byteprophet, rank 0: ValueError()"
    nothing = Ran([{}, {}], [{}, {}], Counter())
    assert verdict("one", [right], nothing) == "error: rank 0 has no result"
    # A hook may not fit a script whose gradients DistributedDataParallel exchanges itself.
    assert verdict("one", [wrong, right], right) == "DDP"


def test_sums_of_servers_are_compared_with_two_ranks_only() -> None:
    with pytest.raises(UserError, match="--syncs byteps: with more than two ranks"):
        ddp_own_tests.main(["--ranks", "2,3", "--syncs", "dear,byteps"])
    with pytest.raises(UserError, match="--ranks 1: must be numbers from 2"):
        ddp_own_tests.main(["--ranks", "1"])
