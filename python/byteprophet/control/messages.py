"""What the workers' clients and the controller say to each other: JSON, one frame per message.

Anything else is refused by ``parse``: not JSON, another schema, an unknown kind or field, a value
out of range, a list or text too long. Times are nanoseconds, bandwidths bits per second.

    worker to controller                             controller to worker
    hello     who I am, what I run, my last plan     welcome   I know you now
    profile   what profile.json holds                unknown   I don't: say hello, and all again
    samples   bandwidth per server and direction     plan      adopt this at that iteration
    status    iteration, how long the last ones took
    staged    a plan is accepted, or why not
    adopted   a plan is in force since an iteration
    bye       I leave
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from byteprophet.profile.model import Profile

SCHEMA: Literal[1] = 1
LARGEST_BYTES = 4 << 20
"""Of a message that is looked at; a profile of 10,000 tensors is 2 MB."""
LONGEST_REASON = 1000
"""Of a plan."""
_MOST_TENSORS = 20_000
_MOST_SERVERS = 1 << 16

Count = Annotated[int, Field(ge=0, le=1 << 50)]
Nanoseconds = Annotated[int, Field(ge=0, le=1 << 60)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Short = Annotated[str, Field(max_length=200)]
Settings = Annotated[dict[Short, Count], Field(max_length=50)]  # a policy has limits of its own


class Model(BaseModel):
    """Plain data: exact types, no fields but those named, does not change."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


class Sample(Model):
    """A worker's link to one server, or to all together (None), in one direction.

    Other fields are None where they are not known.
    """

    server: Annotated[int, Field(ge=0, lt=_MOST_SERVERS)] | None
    direction: Literal["push", "pull"]
    bandwidth_bps: Annotated[int, Field(ge=1, le=1 << 50)]
    spread_bps: Count | None = None
    message_cost_ns: Nanoseconds | None = None
    delay_ns: Nanoseconds | None = None


class Block(Model):
    """What travels between two predicted releases; times from the first ready gradient."""

    starts_ns: Nanoseconds
    ends_ns: Nanoseconds
    tensors: Annotated[list[Name], Field(max_length=_MOST_TENSORS)]


class Ready(Model):
    """When a tensor is ready on the slowest worker."""

    name: Name
    ready_ns: Nanoseconds
    spread_ns: Nanoseconds


class Plan(Model):
    """plan.json: what all workers adopt together; ``settings`` are the policy's, those changed."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    number: Annotated[int, Field(ge=1, le=1 << 50)]
    at_iteration: Count
    settings: Settings
    ready: Annotated[list[Ready], Field(max_length=_MOST_TENSORS)]
    blocks: Annotated[list[Block], Field(max_length=_MOST_TENSORS)]
    predicted_iteration_ns: Nanoseconds
    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


class Message(Model):
    """``job`` is the address of the job's scheduler role; other jobs' messages are refused."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    job: Name


class FromWorker(Message):
    """``worker`` is the role's name."""

    worker: Short


class Hello(FromWorker):
    """``client`` tells one life of a worker's client from the next; ``plan`` 0: none yet."""

    kind: Literal["hello"] = "hello"
    client: Name
    workers: Annotated[int, Field(ge=1, le=1 << 20)]
    policy: Short
    settings: Settings
    iteration: Count
    plan: Count


class ProfileReport(FromWorker):
    """``profile.number`` grows with every new profile of this worker."""

    kind: Literal["profile"] = "profile"
    profile: Profile


class SamplesReport(FromWorker):
    """All that is known now, replacing what was said before."""

    kind: Literal["samples"] = "samples"
    samples: Annotated[list[Sample], Field(max_length=10_000)]


class Status(FromWorker):
    """``took``: iteration and nanoseconds, each once. ``refused``: by reason, since the start.

    ``partition_bytes``: now; workers change it by themselves.
    """

    kind: Literal["status"] = "status"
    iteration: Count
    partition_bytes: Count
    took: Annotated[list[tuple[Count, Nanoseconds]], Field(max_length=1000)]
    refused: Annotated[dict[Short, Count], Field(max_length=50)]


class Staged(FromWorker):
    """``error`` None: plan ``number`` is accepted. ``late``: its iteration has begun already."""

    kind: Literal["staged"] = "staged"
    number: Count
    late: bool = False
    error: Annotated[str, Field(max_length=1000)] | None = None


class Adopted(FromWorker):
    """Plan ``number`` is in force since ``iteration``."""

    kind: Literal["adopted"] = "adopted"
    number: Count
    iteration: Count


class Bye(FromWorker):
    """The worker leaves of its own will."""

    kind: Literal["bye"] = "bye"


class Welcome(Message):
    """``controller`` tells one life of the controller from the next."""

    kind: Literal["welcome"] = "welcome"
    controller: Name


class Unknown(Message):
    """Say hello, and all again."""

    kind: Literal["unknown"] = "unknown"


class PlanOrder(Message):
    """Adopt this."""

    kind: Literal["plan"] = "plan"
    plan: Plan


Inbound = Hello | ProfileReport | SamplesReport | Status | Staged | Adopted | Bye
Outbound = Welcome | Unknown | PlanOrder

INBOUND: TypeAdapter[Inbound] = TypeAdapter(Annotated[Inbound, Field(discriminator="kind")])
OUTBOUND: TypeAdapter[Outbound] = TypeAdapter(Annotated[Outbound, Field(discriminator="kind")])

_Kind = TypeVar("_Kind")


class Refused(Exception):
    """``reason`` is short and of a bounded number of kinds; the exception's text has the detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def encode(message: Message) -> bytes:
    """The one frame of ``message``."""
    return message.model_dump_json(by_alias=True).encode()


def parse(adapter: TypeAdapter[_Kind], frames: list[bytes], job: str | None) -> _Kind:
    """The message in ``frames``; Refused with the reason. ``job`` None: any job."""
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
