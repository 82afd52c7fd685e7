"""The arguments of BytePS' compressors: what is passed on, and what is refused in one line."""

from __future__ import annotations

import pytest

from byteprophet.hooks.compressors import checked


def test_what_byteps_takes() -> None:
    assert checked({}) == {}
    assert checked(
        {"byteps_compressor_type": "onebit", "byteps_compressor_onebit_scaling": True}
    ) == {"compressor_type": "onebit", "compressor_onebit_scaling": "true"}
    assert checked(
        {
            "byteps_compressor_type": "topk",
            "byteps_compressor_k": 0.01,
            "byteps_momentum_type": "nesterov",
            "byteps_momentum_mu": 0.9,
        }
    ) == {
        "compressor_type": "topk",
        "compressor_k": "0.01",
        "momentum_type": "nesterov",
        "momentum_mu": "0.9",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"byteps_compressor_type": "zip"}, "one of onebit, topk, randomk, dithering"),
        ({"compressor_type": "onebit"}, "no such argument"),
        ({"byteps_compressor_typ": "onebit"}, "no such argument"),
        ({"byteps_seed": 3}, "byteps_compressor_type is missing"),
        ({"byteps_compressor_type": "topk"}, "byteps_compressor_k is missing: topk needs it"),
        ({"byteps_compressor_type": "topk", "byteps_compressor_k": 0}, "a number above 0"),
        ({"byteps_compressor_type": "topk", "byteps_compressor_k": True}, "a number above 0"),
        ({"byteps_compressor_type": "randomk", "byteps_seed": 0}, "a whole number above 0"),
        (
            {"byteps_compressor_type": "onebit", "byteps_momentum_type": "nesterov"},
            "byteps_momentum_mu is missing",
        ),
        (
            {"byteps_compressor_type": "onebit", "byteps_ef_type": "vanilla"},
            "error feedback is not available",
        ),
    ],
)
def test_what_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(arguments)
