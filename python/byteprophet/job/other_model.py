"""What is said where a strategy is another model's."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from byteprophet.errors import UserError


def other_model(path: str, difference: str) -> UserError:
    """The error for the strategy in the file ``path``; ``difference`` is the first one."""
    return UserError(f"{path} is the strategy of another model: {difference}")


def other_size(name: str, size_bytes: int, here_bytes: int) -> str:
    """The difference of a parameter that has ``size_bytes`` in the strategy's model."""
    return f"parameter {name!r} has {size_bytes} bytes, and {here_bytes} in this model"


def refuse_second(path: str, known: Collection[str], names: Iterable[str]) -> None:
    """Raise ``UserError`` if ``names`` are those of a second model beside the first one.

    ``known``: the parameters of the strategy in the file ``path``. A parameter gets a number if
    another one of its name still exists (``torch/tensors/naming.py``).
    """
    for name in names:
        first, _, number = name.rpartition("@")
        if number.isdecimal() and first in known and name not in known:
            raise UserError(
                f"{path} is the strategy of one model, and another model's parameter {first!r} "
                "exists already: delete that model and its optimizer before you make this one, or "
                "give this one another strategy"
            )
