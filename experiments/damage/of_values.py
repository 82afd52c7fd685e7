"""Damages JSON, lines of JSON, and TOML by what they say: types, numbers, keys, depth, encoding."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import tomli_w

from damage.of_bytes import Damage, damage_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DEEP, _DIGITS, _FLOAT = "@deep@", "@digits@", "@float@"
_HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    65537,
    2**31,
    2**32,
    2**50,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63),
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "x" * 100_000,
    "\0",
    "\x1b[2J\n",
    "\ud800",
    "'\"<script>&",
    "..",
    "../../../etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "1",
    "nan",
    "\uff11",
    [],
    {},
    [[]],
    [None],
    {"": None},
    _DEEP,
    _DIGITS,
    _FLOAT,
)
_ENCODINGS = ("utf-8-sig", "utf-16", "utf-32", "latin-1")
_BYTES_TOO = 0.3  # share of inputs that are damaged as bytes
_Place = tuple[Any, Any]  # a dictionary or list, and a key or index


def damage_json(content: bytes, random: Random) -> bytes:
    """One JSON value."""
    return _damage(content, random, json.loads, json.dumps, _json_text)


def damage_lines(content: bytes, random: Random) -> bytes:
    """Lines of JSON: one of them is damaged, or lines are lost, doubled or mixed up."""
    lines = content.splitlines(keepends=True)
    if not lines or random.random() < _BYTES_TOO / 2:
        return damage_bytes(content, random)
    at = random.randrange(len(lines))
    how = random.random()
    if how < 0.1:
        random.shuffle(lines)
    elif how < 0.2:
        lines[at:at] = [lines[random.randrange(len(lines))]] * random.choice((1, 100))
    elif how < 0.25:
        del lines[at]
    else:
        lines[at] = damage_json(lines[at], random) + random.choice((b"\n", b"\n", b"\n", b""))
    return b"".join(lines)


def damage_toml(content: bytes, random: Random) -> bytes:
    """One TOML table."""
    return _damage(
        content, random, lambda text: tomllib.loads(text.decode()), _toml_dumps, _toml_text
    )


def damage_text(content: bytes, random: Random) -> bytes:
    """A short text: an option's value, a key file. Hostile pieces take the place of some of it."""
    if random.random() < _BYTES_TOO:
        return damage_bytes(content, random)
    pieces = (
        "0",
        "-1",
        "9" * 30,
        "9" * 5000,
        "\uff11",
        "nan",
        "inf",
        "=",
        ",",
        ":",
        "@",
        " ",
        "\n",
    )
    text = content.decode(errors="replace")
    for _ in range(random.choice((1, 1, 2))):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.choice((0, 1, 3)))
        text = text[:begin] + random.choice((*pieces, "", "x", "\x1b[2J")) + text[end:]
    return text.encode()


def _damage(
    content: bytes,
    random: Random,
    loads: Callable[[bytes], Any],
    dumps: Callable[[Any], str],
    finish: Callable[[str], str],
) -> bytes:
    if random.random() < _BYTES_TOO:
        return damage_bytes(content, random)
    try:
        tree = deepcopy(loads(content))
    except ValueError:
        return damage_bytes(content, random)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return damage_bytes(content, random)
        _change(*_likely(places, random), places, random)
    text = finish(dumps(tree))
    if random.random() < 0.03:
        return text.encode(random.choice(_ENCODINGS), "replace")
    return text.encode("utf-8", "surrogatepass")


def _places(tree: Any) -> Iterator[_Place]:
    """Every place of a value, without recursion."""
    left = [tree]
    while left:
        node = left.pop()
        keys: Any = ()
        if isinstance(node, dict):
            keys = list(node)
        elif isinstance(node, list):
            keys = range(len(node))
        for key in keys:
            yield node, key
            left.append(node[key])


def _likely(places: list[_Place], random: Random) -> _Place:
    """Any place; each name of a field is as likely as the others, however often it is there."""
    if random.random() < 0.5:
        return random.choice(places)
    names = sorted({str(key) for node, key in places if isinstance(node, dict)})
    name = random.choice(names or [""])
    return random.choice([place for place in places if str(place[1]) == name] or places)


def _change(node: Any, key: Any, places: list[_Place], random: Random) -> None:
    how = random.random()
    value = node[key]
    if how < 0.4:
        node[key] = deepcopy(random.choice(_HOSTILE))
    elif how < 0.6 and type(value) in (int, float):
        node[key] = random.choice(
            (value + 1, value - 1, -value, value * 1000, value * 2**20, value // 2, float(value))
        )
    elif how < 0.7:
        del node[key]
    elif how < 0.8 and isinstance(node, dict):
        node[random.choice(("extra", "", "schema", "\0", "y" * 10_000))] = node.pop(key)
    elif how < 0.9 and isinstance(node, list):
        node[key:key] = [deepcopy(value)] * random.choice((1, 10, 2000))
    else:
        other, at = random.choice(places)
        if at in other if isinstance(other, dict) else at < len(other):
            node[key] = deepcopy(other[at])


def _toml_dumps(tree: Any) -> str:
    return tomli_w.dumps(_without_none(tree))


def _without_none(tree: Any) -> Any:
    """What TOML cannot say is left out; trees here are a few levels deep."""
    if isinstance(tree, dict):
        return {str(key): _without_none(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list):
        return [_without_none(value) for value in tree if value is not None]
    return tree


def _json_text(text: str) -> str:
    return _marked(text).replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000)


def _toml_text(text: str) -> str:
    return _marked(text).replace(f'"{_DEEP}"', "[" * 5_000 + "]" * 5_000)


def _marked(text: str) -> str:
    return text.replace(f'"{_DIGITS}"', "9" * 5_000).replace(f'"{_FLOAT}"', "1e999")


DAMAGES: dict[str, Damage] = {
    "bytes": damage_bytes,
    "json": damage_json,
    "lines": damage_lines,
    "text": damage_text,
    "toml": damage_toml,
}
