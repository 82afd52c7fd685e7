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
    assert checked(
        {
            "byteps_compressor_type": "dithering",
            "byteps_compressor_k": 5,
            "byteps_dithering_partition": 1,
            "byteps_dithering_normalize": 0,
        }
    ) == {
        "compressor_type": "dithering",
        "compressor_k": "5",
        "dithering_partition": "1",
        "dithering_normalize": "0",
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
        ({"byteps_compressor_k": 0.5, "byteps_compressor_type": "dithering"}, "for dithering"),
        ({"byteps_compressor_type": "dithering", "byteps_compressor_k": 1.5}, "for dithering"),
        (
            {"byteps_compressor_type": "dithering", "byteps_dithering_partition": True},
            r"must be 0 \(linear\) or 1",
        ),
        (
            {"byteps_compressor_type": "dithering", "byteps_dithering_normalize": True},
            r"must be 0 \(max\) or 1",
        ),
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
