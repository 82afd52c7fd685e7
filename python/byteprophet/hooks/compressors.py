"""Checks the arguments of BytePS' own gradient compressors.

BytePS' ``declare`` calls this (patch 0026), because BytePS ends the process for a wrong argument,
ignores an unknown one, and reads what is no whole number as one where it needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_PREFIX = "byteps_"
_COMPRESSORS = ("onebit", "topk", "randomk", "dithering")


def _is_number(low: float, whole: bool) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        return number and float(str(value)) >= low

    return check


def _is_0_or_1(value: object) -> bool:
    """Whether ``value`` is one of these numbers; BytePS would read both True and False as 0."""
    return type(value) is int and value in (0, 1)


_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "compressor_type": (lambda value: value in _COMPRESSORS, f"one of {', '.join(_COMPRESSORS)}"),
    "compressor_k": (_is_number(1e-9, whole=False), "a number above 0"),
    "compressor_onebit_scaling": (lambda value: isinstance(value, bool), "True or False"),
    "seed": (_is_number(1, whole=True), "a whole number above 0"),
    "dithering_partition": (_is_0_or_1, "0 (linear) or 1 (natural)"),
    "dithering_normalize": (_is_0_or_1, "0 (max) or 1 (L2)"),
    "momentum_type": (lambda value: value == "nesterov", "nesterov"),
    "momentum_mu": (_is_number(0, whole=False), "a number not below 0"),
}

# Where one compressor takes less than the others.
_CHECKS_OF: Mapping[tuple[str, str], tuple[Callable[[object], bool], str]] = {
    ("dithering", "compressor_k"): (
        _is_number(1, whole=True),
        "a whole number above 0 for dithering",
    ),
}

_NEEDS = {
    "topk": "compressor_k",
    "randomk": "compressor_k",
    "dithering": "compressor_k",
    "nesterov": "momentum_mu",
}


def checked(arguments: Mapping[str, object]) -> dict[str, str]:
    """What BytePS takes for ``declare(name, byteps_compressor_type="topk", ...)``.

    ``ValueError`` for what it would not understand, and for error feedback: it reads the learning
    rate from a file that only BytePS' MXNet plug-in writes.
    """
    result = {}
    compressor = str(arguments.get(f"{_PREFIX}compressor_type"))
    for name, value in arguments.items():
        key = name.removeprefix(_PREFIX)
        if key == "ef_type":
            raise ValueError(f"declare: {name}: error feedback is not available for PyTorch")
        if key == name or key not in _CHECKS:
            known = ", ".join(_PREFIX + key for key in _CHECKS)
            raise ValueError(f"declare: {name}: there is no such argument; have {known}")
        is_right, expected = _CHECKS_OF.get((compressor, key), _CHECKS[key])
        if not is_right(value):
            raise ValueError(f"declare: {name}={value!r}: must be {expected}")
        result[key] = str(value).lower()
    if result and "compressor_type" not in result:
        raise ValueError(f"declare: {_PREFIX}compressor_type is missing")
    for owner, needed in _NEEDS.items():
        if owner in result.values() and needed not in result:
            raise ValueError(f"declare: {_PREFIX}{needed} is missing: {owner} needs it")
    return result
