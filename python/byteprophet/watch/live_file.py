"""Reads a worker's status file ``live/<role>.json`` (``observe/live.py`` writes it)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from byteprophet.errors import UserError
from byteprophet.input_files import read_bytes
from byteprophet.profile.model import first_error

MOST_BYTES = 1 << 22
_Count = Annotated[int, Field(ge=0, le=2**62)]
_Name = Annotated[str, Field(max_length=1000)]


class _Record(BaseModel):
    # Fields of later versions are no error.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class LiveLink(_Record):
    """Sums of what went to a server and came back. ``in_flight_bytes``: the recent maximum."""

    server: _Count
    push_bytes: _Count
    pull_bytes: _Count
    push_busy_ns: _Count
    pull_busy_ns: _Count
    in_flight_bytes: _Count


class LiveWait(_Record):
    """Recent waits of the training for a parameter: how many, and their sum."""

    name: _Name
    count: _Count
    wait_ns: _Count


class LiveTensor(_Record):
    """Recent transfers of a tensor: means of the time it was held, and of its travel."""

    name: _Name
    size_bytes: _Count
    held_ns: _Count
    travel_ns: _Count


class LiveInterfaces(_Record):
    """The counters of a host's interfaces but loopback."""

    sent_bytes: _Count
    received_bytes: _Count


class LiveStatus(_Record):
    """One status file; docs/formats.md has its fields."""

    schema_: Annotated[int, Field(strict=True, ge=1, le=1)] = Field(alias="schema")
    role: Annotated[str, Field(min_length=1, max_length=200)]
    rank: _Count
    size: Annotated[int, Field(ge=1, le=2**20)]
    pid: _Count
    machine: _Name
    monotonic_ns: _Count
    unix_ns: _Count
    ended: bool
    watched: _Count
    watching: bool
    iterations: _Count
    starts: Annotated[
        tuple[Annotated[tuple[_Count, _Count], Field(strict=False)], ...],
        Field(strict=False, max_length=10_000),
    ]
    wait_ns: _Count | None
    waits: Annotated[tuple[LiveWait, ...], Field(strict=False, max_length=1000)]
    transfers: _Count
    held_ns: _Count
    travel_ns: _Count
    peers_ns: _Count
    links: Annotated[tuple[LiveLink, ...], Field(strict=False, max_length=10_000)]
    tensors: Annotated[tuple[LiveTensor, ...], Field(strict=False, max_length=1000)]
    interfaces: LiveInterfaces | None


def read_status(path: Path) -> LiveStatus:
    """The status in the file at ``path``. Raises ``UserError`` in one line that names the file."""
    content = read_bytes(path, MOST_BYTES)
    try:
        return LiveStatus.model_validate_json(content)
    except ValidationError as error:
        raise UserError(f"{path}: {first_error(error)}") from None
