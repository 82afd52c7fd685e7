"""The messages between workers' clients and the controller: JSON, one frame per message.

``parse`` refuses anything else: text that is not JSON, another schema, an unknown kind or field, a
value out of range, a list or text that is too long. Times are nanoseconds, bandwidths are bits per
second.

    worker to controller                             controller to worker
    hello     identity, settings, last plan          welcome   the worker is known now
    profile   the content of profile.json            unknown   the worker must send all again
    samples   bandwidth per server and direction     plan      to be adopted at its iteration
    status    iteration, durations of the latest
    staged    a plan is accepted, or why not
    adopted   a plan is in force since an iteration
    bye       the worker leaves
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from byteprophet.profile.model import Profile

SCHEMA: Literal[1] = 1
LARGEST_BYTES = 4 << 20
"""The largest message that is accepted. A profile of 10,000 tensors has 2 MB."""
LONGEST_REASON = 1000
"""The longest text of a plan's reason, in characters."""
_MOST_TENSORS = 20_000
_MOST_SERVERS = 1 << 16

Count = Annotated[int, Field(ge=0, le=1 << 50)]
Nanoseconds = Annotated[int, Field(ge=0, le=1 << 60)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Short = Annotated[str, Field(max_length=200)]
Settings = Annotated[dict[Short, Count], Field(max_length=50)]  # each policy checks its own limits


class Model(BaseModel):
    """Immutable plain data with exact types. Unknown fields are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


class Sample(Model):
    """A worker's link to one server, or to all together (``server`` None), in one direction.

    Other fields are None if they are not known.
    """

    server: Annotated[int, Field(ge=0, lt=_MOST_SERVERS)] | None
    direction: Literal["push", "pull"]
    bandwidth_bps: Annotated[int, Field(ge=1, le=1 << 50)]
    spread_bps: Count | None = None
    message_cost_ns: Nanoseconds | None = None
    delay_ns: Nanoseconds | None = None


class Block(Model):
    """The tensors sent between two predicted releases. Times are from the first ready gradient."""

    starts_ns: Nanoseconds
    ends_ns: Nanoseconds
    tensors: Annotated[list[Name], Field(max_length=_MOST_TENSORS)]


class Ready(Model):
    """The ready time of a tensor on the worker where it is ready last."""

    name: Name
    ready_ns: Nanoseconds
    spread_ns: Nanoseconds


class Plan(Model):
    """A plan that all workers adopt together, as in plan.json.

    ``settings`` are those of the policy's settings that the plan sets.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    number: Annotated[int, Field(ge=1, le=1 << 50)]
    at_iteration: Count
    settings: Settings
    ready: Annotated[list[Ready], Field(max_length=_MOST_TENSORS)]
    blocks: Annotated[list[Block], Field(max_length=_MOST_TENSORS)]
    predicted_iteration_ns: Nanoseconds
    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


class Message(Model):
    """A message. ``job`` is the address of the job's scheduler role.

    Messages of other jobs are refused.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    job: Name


class FromWorker(Message):
    """A message from a worker. ``worker`` is the role's name."""

    worker: Short


class Hello(FromWorker):
    """The first message. ``client`` identifies one life of the client; ``plan`` is 0 at first."""

    kind: Literal["hello"] = "hello"
    client: Name
    workers: Annotated[int, Field(ge=1, le=1 << 20)]
    policy: Short
    settings: Settings
    iteration: Count
    plan: Count


class ProfileReport(FromWorker):
    """A new profile. ``profile.number`` grows with every new profile of this worker."""

    kind: Literal["profile"] = "profile"
    profile: Profile


class SamplesReport(FromWorker):
    """All current samples. They replace those sent before."""

    kind: Literal["samples"] = "samples"
    samples: Annotated[list[Sample], Field(max_length=10_000)]


class Status(FromWorker):
    """The worker's progress, sent four times a second.

    ``took``: number and duration (ns) of iterations; each is sent once. ``refused``: the number of
    refusals since the start, by reason. ``partition_bytes``: the current size, which workers change
    by themselves. ``busy``: the share of its host's core time that was used lately, 0 to 1; None if
    it is not known.
    """

    kind: Literal["status"] = "status"
    iteration: Count
    partition_bytes: Count
    busy: Annotated[float, Field(ge=0, le=1)] | None = None
    took: Annotated[list[tuple[Count, Nanoseconds]], Field(max_length=1000)]
    refused: Annotated[dict[Short, Count], Field(max_length=50)]


class Staged(FromWorker):
    """The answer to plan ``number``. ``error`` None: it is accepted.

    ``late``: it was refused because its iteration has already begun.
    """

    kind: Literal["staged"] = "staged"
    number: Count
    late: bool = False
    error: Annotated[str, Field(max_length=1000)] | None = None


class Adopted(FromWorker):
    """Plan ``number`` has been in force since ``iteration``."""

    kind: Literal["adopted"] = "adopted"
    number: Count
    iteration: Count


class Bye(FromWorker):
    """The worker leaves the job."""

    kind: Literal["bye"] = "bye"


class Welcome(Message):
    """The answer to ``Hello``. ``controller`` identifies one life of the controller."""

    kind: Literal["welcome"] = "welcome"
    controller: Name


class Unknown(Message):
    """The controller does not know the worker, which must say hello and send everything again."""

    kind: Literal["unknown"] = "unknown"


class PlanOrder(Message):
    """A plan to adopt."""

    kind: Literal["plan"] = "plan"
    plan: Plan


Inbound = Hello | ProfileReport | SamplesReport | Status | Staged | Adopted | Bye
Outbound = Welcome | Unknown | PlanOrder

INBOUND: TypeAdapter[Inbound] = TypeAdapter(Annotated[Inbound, Field(discriminator="kind")])
OUTBOUND: TypeAdapter[Outbound] = TypeAdapter(Annotated[Outbound, Field(discriminator="kind")])

_Kind = TypeVar("_Kind")


class Refused(Exception):
    """A message was refused. ``reason`` is one of a few short texts; ``str`` has the details."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def encode(message: Message) -> bytes:
    """The frame of ``message``."""
    return message.model_dump_json(by_alias=True).encode()


def parse(adapter: TypeAdapter[_Kind], frames: list[bytes], job: str | None) -> _Kind:
    """The message in ``frames``. Raises ``Refused`` with the reason. ``job`` None: any job."""
    if len(frames) != 1:
        raise Refused("not one frame", f"{len(frames)} frames")
    if len(frames[0]) > LARGEST_BYTES:
        raise Refused("too large", f"{len(frames[0])} bytes")
    try:
        message = adapter.validate_json(frames[0])
    except pydantic.ValidationError as error:
        raise _why(error.errors(include_url=False, include_context=False)[0]) from None
    assert isinstance(message, Message)
    if job is not None and message.job != job:
        raise Refused("another job", repr(message.job[:100]))
    return message


def _why(first: Mapping[str, Any]) -> Refused:
    if first["type"] == "json_invalid":
        return Refused("not JSON", str(first["msg"])[:200])
    field = ".".join(str(part)[:50] for part in first["loc"])[:200]
    return Refused("wrong schema", f"{field or 'message'}: {str(first['msg'])[:200]}")
