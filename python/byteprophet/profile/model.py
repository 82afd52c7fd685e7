"""The types of a profile, and its file.

A ``Profile`` that exists is consistent: reading refuses anything else with a ``UserError`` that
names file, field and value. Times are nanoseconds; ready times count from the iteration's first
ready gradient.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from byteprophet.errors import UserError
from byteprophet.input_files import read_bytes
from byteprophet.whole_files import write_whole

_Count = Annotated[int, Field(ge=0, le=2**50)]
_Name = Annotated[str, Field(min_length=1)]
_Model = TypeVar("_Model", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class TensorProfile(_Record):
    """One tensor: ``size_bytes`` on the wire in one direction, ``forward_order`` from 0.

    ``forward_ns``: the time that forward takes from where it needs this tensor to where it needs
    the next, waits for parameters left out; ``burst``: its place in ``Profile.bursts``.
    ``spread_ns`` is 1.4826 times the median absolute deviation: a normal distribution's standard
    deviation.
    """

    name: _Name
    size_bytes: _Count
    forward_order: _Count
    ready_ns: _Count
    spread_ns: _Count
    forward_ns: _Count
    burst: _Count


class Burst(_Record):
    """Tensors that become ready together: when the first of them does, how many, how large."""

    ready_ns: _Count
    spread_ns: _Count
    tensors: Annotated[int, Field(ge=1, le=2**50)]
    size_bytes: _Count


class Profile(_Record):
    """One worker's iterations, as medians over ``iterations`` of them.

    ``tensors`` in forward order, ``bursts`` in the order in which they come. ``backward_ns`` is
    from the end of forward to the last ready gradient; where forward was not seen (``forward_ns``
    0), from the first ready gradient. ``number`` counts the profiles of a job: drift makes a new
    one.
    """

    schema_: Annotated[int, Field(strict=True, ge=1, le=1)] = Field(default=1, alias="schema")
    number: Annotated[int, Field(ge=1)] = 1
    scheduler: _Name
    workers: Annotated[int, Field(ge=1)]
    rank: _Count
    iterations: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] | None
    forward_ns: _Count
    backward_ns: _Count
    tensors: Annotated[tuple[TensorProfile, ...], Field(min_length=1, strict=False)]
    bursts: Annotated[tuple[Burst, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _check(self) -> Profile:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            counts = Counter(names)
            twice = next(name for name in names if counts[name] > 1)
            raise ValueError(f"tensors: name {twice!r} occurs twice")
        for before, after in zip(self.tensors, self.tensors[1:], strict=False):
            if before.forward_order >= after.forward_order:
                raise ValueError(
                    f"tensors: forward_order {after.forward_order} of {after.name!r} must be above "
                    f"{before.forward_order}, which the one before has"
                )
        members: Counter[int] = Counter()
        sizes_bytes: Counter[int] = Counter()
        for tensor in self.tensors:
            members[tensor.burst] += 1
            sizes_bytes[tensor.burst] += tensor.size_bytes
        for number, burst in enumerate(self.bursts):
            if (members[number], sizes_bytes[number]) != (burst.tensors, burst.size_bytes):
                raise ValueError(
                    f"bursts: number {number} has {burst.tensors} tensors of {burst.size_bytes} "
                    f"bytes, but there are {members[number]} of {sizes_bytes[number]}"
                )
        beyond = [tensor for tensor in self.tensors if tensor.burst >= len(self.bursts)]
        if beyond:
            raise ValueError(
                f"tensors: burst {beyond[0].burst} of {beyond[0].name!r}: no such burst"
            )
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    def to_json(self) -> str:
        """The text of a file from which ``read_profile`` gives an equal profile."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the file at ``path``; readers see all of it or what was there before."""
        write_whole(path, self.to_json())


def read_profile(path: Path) -> Profile:
    """The profile in the file at ``path``."""
    return read_model(path, Profile)


def read_model(path: Path, model: type[_Model], whole: str = "") -> _Model:
    """The ``model`` that is JSON in the file at ``path``.

    UserError names file and field; ``whole``: what it calls the file's content where no field is at
    fault.
    """
    text = read_bytes(path)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise UserError(f"{path}: {first_error(error, whole)}") from None


def first_error(error: ValidationError, whole: str = "") -> str:
    """Field, reason and value of what ``error`` says first; ``whole`` as in ``read_model``."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or whole
    value = first["input"]
    shown = f", got {value!r}" if isinstance(value, (bool, int, float, str)) else ""
    where = f"{field}: " if field else ""
    reason = first["msg"].removeprefix("Value error, ")
    return f"{where}{reason}{shown[:100]}"


def profile_path(run_directory: Path, rank: int) -> Path:
    """Where rank ``rank`` saves its profile in a run directory."""
    return run_directory / ("profile.json" if rank == 0 else f"profile-{rank}.json")
