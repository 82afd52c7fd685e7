"""What is not a message is refused, whatever it is; what is one survives the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteprophet.control.messages import (
    INBOUND,
    LARGEST_BYTES,
    OUTBOUND,
    Adopted,
    Bye,
    Hello,
    Message,
    Plan,
    PlanOrder,
    ProfileReport,
    Ready,
    Refused,
    Sample,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
    encode,
    parse,
)

from .conftest import JOB, profile

FROM_WORKER: list[Message] = [
    Hello(
        job=JOB,
        worker="worker-0",
        client="c",
        workers=2,
        policy="prophet",
        settings={"window_max_bytes": 1},
        iteration=3,
        plan=0,
    ),
    ProfileReport(job=JOB, worker="worker-0", profile=profile(10, 20)),
    SamplesReport(
        job=JOB,
        worker="worker-0",
        samples=[Sample(server=0, direction="push", bandwidth_bps=10**9)],
    ),
    Status(
        job=JOB,
        worker="worker-0",
        iteration=5,
        partition_bytes=0,
        took=[(4, 100)],
        refused={"not JSON": 1},
    ),
    Staged(job=JOB, worker="worker-0", number=1, late=True, error="too late"),
    Adopted(job=JOB, worker="worker-0", number=1, iteration=7),
    Bye(job=JOB, worker="worker-0"),
]
PLAN = Plan(
    number=1,
    at_iteration=7,
    settings={"window_max_bytes": 5},
    ready=[Ready(name="t0", ready_ns=3, spread_ns=1)],
    blocks=[],
    predicted_iteration_ns=100,
    reason="first",
)
FROM_CONTROLLER: list[Message] = [
    Welcome(job=JOB, controller="x"),
    Unknown(job=JOB),
    PlanOrder(job=JOB, plan=PLAN),
]
WIRE = [(INBOUND, message) for message in FROM_WORKER] + [
    (OUTBOUND, message) for message in FROM_CONTROLLER
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(("adapter", "message"), WIRE)
def test_messages_survive_the_wire(adapter: Any, message: Message) -> None:
    assert parse(adapter, [encode(message)], JOB) == message


@pytest.mark.parametrize(("adapter", "message"), WIRE)
def test_each_side_says_only_its_own(adapter: Any, message: Message) -> None:
    other = OUTBOUND if adapter is INBOUND else INBOUND
    with pytest.raises(Refused, match="wrong schema"):
        parse(other, [encode(message)], JOB)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for adapter in (INBOUND, OUTBOUND):
        with pytest.raises(Refused):
            parse(adapter, [data], JOB)


@given(anything)
def test_any_json_is_refused(value: object) -> None:
    for adapter in (INBOUND, OUTBOUND):
        with pytest.raises(Refused):
            parse(adapter, [json.dumps(value).encode()], JOB)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path] + [spot for key, below in inner for spot in spots(below, (*path, key))]


@given(st.sampled_from(WIRE), st.data())
def test_a_message_with_one_thing_changed_is_another_message_or_none(
    wire: tuple[Any, Message], data: st.DataObject
) -> None:
    adapter, message = wire
    content = json.loads(encode(message))
    *above, last = data.draw(st.sampled_from(spots(content)[1:]))
    holder = content
    for key in above:
        holder = holder[key]
    holder[last] = data.draw(anything)
    try:
        changed = parse(adapter, [json.dumps(content).encode()], None)
    except Refused:
        return
    # Defaults may be left out on the way in, so what came through is compared as it would go out.
    assert json.loads(encode(changed)) == content or holder[last] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "wrong schema"),
        ({"kind": "attack"}, "wrong schema"),
        ({"extra": 1}, "wrong schema"),
        ({"iteration": -1}, "wrong schema"),
        ({"iteration": 1 << 70}, "wrong schema"),
        ({"iteration": "5"}, "wrong schema"),
        ({"iteration": 5.0}, "wrong schema"),
        ({"iteration": True}, "wrong schema"),
        ({"took": [[1, 2]] * 2000}, "wrong schema"),
        ({"worker": "w" * 1000}, "wrong schema"),
        ({"job": "10.0.0.1:1"}, "another job"),
    ],
)
def test_wrong_fields_are_refused_by_name(change: dict[str, Any], reason: str) -> None:
    status = json.loads(encode(FROM_WORKER[3]))
    with pytest.raises(Refused) as refused:
        parse(INBOUND, [json.dumps({**status, **change}).encode()], JOB)
    assert refused.value.reason == reason
    if reason == "wrong schema":
        assert next(iter(change)) in str(refused.value)


def test_what_no_policy_and_no_job_has_is_refused() -> None:
    hello, samples = (json.loads(encode(FROM_WORKER[place])) for place in (0, 2))
    hello["settings"]["window_max_bytes"] = 10**400
    samples["samples"][0]["server"] = 1 << 16
    for content, field in ((hello, "window_max_bytes"), (samples, "server")):
        with pytest.raises(Refused, match=f"wrong schema: .*{field}"):
            parse(INBOUND, [json.dumps(content).encode()], JOB)


def test_frames_and_sizes() -> None:
    good = encode(FROM_WORKER[-1])
    for frames, reason in (
        ([], "not one frame"),
        ([good, good], "not one frame"),
        ([good + b" " * LARGEST_BYTES], "too large"),
        ([b'{"kind": ' + b"[" * 100_000], "not JSON"),
    ):
        with pytest.raises(Refused) as refused:
            parse(INBOUND, frames, JOB)
        assert refused.value.reason == reason
        assert len(str(refused.value)) < 500


def test_a_large_model_fits() -> None:
    report = ProfileReport(job=JOB, worker="worker-0", profile=profile(*[10**8] * 2000))
    assert parse(INBOUND, [encode(report)], JOB) == report
