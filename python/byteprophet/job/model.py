"""The trained model: parameters in forward order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Parameter:
    """One parameter tensor.

    ``size_bytes`` is the size of its gradient in its own type (``Job.wire_bytes``: on the wire).
    ``layer`` names the module that owns it; "" where that is not known. ``frozen``: it is not
    trained and has no gradient, but is in a unit of FSDP2, which all-gathers ``size_bytes``.
    """

    name: str
    size_bytes: int
    layer: str = ""
    frozen: bool = False


@dataclass(frozen=True)
class Model:
    """``parameters`` stand in the order in which the forward pass needs them."""

    parameters: tuple[Parameter, ...]

    def __len__(self) -> int:
        return len(self.parameters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in forward order."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each parameter in forward order, from 0, by its name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The sizes of the parameters' gradients, in forward order."""
        return tuple(parameter.size_bytes for parameter in self.parameters)

    def trains(self, names: Iterable[str]) -> bool:
        """Whether any of the parameters ``names`` is not frozen."""
        return any(not self.parameters[self.places[name]].frozen for name in names)

    @property
    def size_bytes(self) -> int:
        """The size of all gradients together."""
        return sum(self.sizes_bytes)
