"""Names of tensors in BytePS: of a parameter's gradient, and of a parameter that is itself sent.

They are the names that BytePS' own fronts use, except that of a buffer of several gradients. In
messages and recorded runs, the prefix of a name gives the kind of the tensor. Only this module
writes and reads these prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence

_GRADIENT = "Gradient."
PARAMETER_PREFIX = "Parameter."


def gradient_name(parameter: str) -> str:
    """The name of the gradient of ``parameter``."""
    return _GRADIENT + parameter


def parameter_name(parameter: str) -> str:
    """The name under which the values of ``parameter`` are broadcast."""
    return PARAMETER_PREFIX + parameter


def parameter_of(name: str) -> str | None:
    """The parameter whose gradient is called ``name``; None: it is no gradient's name."""
    return name[len(_GRADIENT) :] if name.startswith(_GRADIENT) else None


def buffer_text(parameters: Sequence[str]) -> str:
    """What a buffer of ``parameters`` is called in records and strategies."""
    return f"{parameters[0]} and {len(parameters) - 1} more"


def is_buffer_text(name: str) -> bool:
    """Whether ``name`` is what ``buffer_text`` calls a buffer of several parameters."""
    return " and " in name


def buffer_name(first: str, parameters: int, number: int) -> str:
    """The name of a buffer that several gradients share. It stands for a parameter's name.

    ``first`` and ``parameters`` tell optimizers apart: its first parameter, and how many it has.
    """
    return f"byteprophet.fused.{first}.{parameters}.{number}"


def late_name(parameter: str, turn: int) -> str:
    """What stands for a parameter's name while earlier gradients of it travel; ``turn`` > 0."""
    return f"byteprophet.late.{turn}.{parameter}"
