"""Damage to files of traces, as disks and tools do it: of one seed always the same."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**400),
    *(0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), "1e99999", "NaN", "-0", "1_0", "0x10"),
    *("", "x", "\ud83d", "\x00", "ProfilerStep#1", "nccl:send 0->1", "é" * 70000, "9" * 5000),
    *([], {}, [[]], [None], ["x"], [[-1, 2]], [[2**40] * 90], {"x": {}}, {"name": ["x"]}),
)


def damaged_bytes(random: Random, content: bytes) -> bytes:
    """``content`` with some of it flipped, cut, moved or made up."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        at, length = random.randrange(len(data) + 1), random.choice((1, 2, 8, 64, 1000))
        what = random.randrange(6)
        if what == 0:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif what == 1 and at < len(data):
            data[at] ^= 1 << random.randrange(8)
        elif what == 2:
            del data[at : at + length]
        elif what == 3:
            begin = random.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + length]
        elif what == 4:
            data[at : at + length] = random.randbytes(length)
        else:
            del data[at:]
        data = data or bytearray(b" ")
    return bytes(data)


def damaged_json(random: Random, value: Any) -> str:
    """The text of ``value`` with some values in it replaced, removed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            break
        holder, key = random.choice(places)
        what = random.randrange(8)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[random.randrange(len(holder))]))
        elif what == 2:
            other_holder, other_key = random.choice(places)
            holder[key] = copy.deepcopy(other_holder[other_key])
        else:
            holder[key] = copy.deepcopy(random.choice(ODD_VALUES))
    return json.dumps(value)


def damaged_messages(random: Random, content: bytes) -> bytes:
    """Messages behind their lengths, some fields of which are damaged, while the lengths fit."""
    messages = _split(content)
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(messages))
        what = random.randrange(5)
        if what == 0:
            messages.insert(random.randrange(len(messages) + 1), messages[at])
        elif what == 1 and len(messages) > 1:
            del messages[at]
        elif what == 2:  # a field more, of any number, kind and value
            tag = _varint(random.choice((1, 2, 3, 4, 5, 6, 7, 10, 99)) << 3)
            number = _varint(random.choice((0, 1, 7, 2**31, 2**63, 2**64 - 1)))
            messages[at] += bytes([tag[0] | random.choice((0, 1, 2, 5))]) + tag[1:] + number
        else:
            messages[at] = damaged_bytes(random, messages[at] or b" ")
    return b"".join(_varint(len(message)) + message for message in messages)


def _split(content: bytes) -> list[bytes]:
    messages, at = [], 0
    while at < len(content):
        size, shift = 0, 0
        while True:
            byte = content[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        messages.append(content[at : at + size])
        at += size
    return messages


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _places(value: Any) -> Any:
    """Every value in ``value``, as what holds it and where."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)
