"""What is foretold for sparse gradients, and what is printed of it; no job runs here."""

from __future__ import annotations

import numpy as np
import pytest
import sparse_gradients
from sparse_worker import MODELS, draws_of, formulas

from byteprophet.errors import UserError


def test_ranks_draw_different_rows_and_low_ones_most() -> None:
    one, other = (draws_of(MODELS["ncf"], 3, rank, 2000) for rank in (0, 1))
    for mine, its, (_, rows) in zip(one, other, MODELS["ncf"].TABLES, strict=True):
        assert mine.min() >= 0
        assert mine.max() < rows
        assert not np.array_equal(mine, its)
        assert (mine < rows // 100).mean() > 0.3


def test_few_rows_take_much_less_than_tables() -> None:
    found = formulas(MODELS["lm1b"], range(1, 3), 4, 512)
    rows = sum(table_rows for _, table_rows in MODELS["lm1b"].TABLES)
    assert found["dense"] == pytest.approx(2 * 3 / 4 * rows * 512 * 4)
    assert found["rows"] < found["by_owner"] < found["dense"] / 20
    assert found["least"] < found["rows"] < found["gathered"]


def test_measured_bytes_are_put_beside_those_foretold() -> None:
    row = {
        "model": "ncf", "variant": "ddp", "sent_bytes": 3.3e6, "other_bytes": 1e6,
        "rows": 1e6, "by_owner": 1.5e6, "gathered": 2e6, "dense": 9e6, "least": 0.8e6,
        "iteration_ns": 5e6,
    }  # fmt: skip
    assert sparse_gradients.foretold_bytes(row) == 3e6
    assert sparse_gradients.foretold_bytes({**row, "variant": "rows"}) == 2e6
    assert "rows by owner would send 1.250 times as much" in sparse_gradients.other_ways(row)
    assert (
        "dense gradients 5.0 times; no way sends less than 0.900 times"
        in sparse_gradients.other_ways(row)
    )


@pytest.mark.parametrize("option", ["--models", "--variants"])
def test_what_there_is_not_is_refused(option: str) -> None:
    with pytest.raises(UserError, match=f"{option}: there is no 'x'; have "):
        sparse_gradients.main([option, "x"])
