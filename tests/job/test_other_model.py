"""What is said where a strategy is another model's."""

from __future__ import annotations

import pytest

from byteprophet.errors import UserError
from byteprophet.job.other_model import refuse_second


def test_a_second_model_beside_the_first_is_named() -> None:
    known = ("conv.weight", "two@2")
    refuse_second("a.json", known, ["conv.weight", "two@2", "other@2", "name@x"])
    with pytest.raises(UserError) as refused:
        refuse_second("a.json", known, ["conv.weight@2"])
    assert str(refused.value) == (
        "a.json is the strategy of one model, and another model's parameter 'conv.weight' exists "
        "already: delete that model and its optimizer before you make this one, or give this one "
        "another strategy"
    )
