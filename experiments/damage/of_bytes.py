"""Damages bytes, whatever they mean."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Damage = Callable[[bytes, Random], bytes]
"""Takes a content and a seeded generator; returns the damaged content."""

_MOST_TURNS = 3
_FOREIGN = (
    b"",
    b"\n",
    b"{}",
    b"[]",
    b"null",
    b"NaN",
    b"0",
    b'"text"',
    b"a = 1\n",
    b"PAR1",
    b"ARROW1\0\0",
    b"\x1f\x8b",
    b"\xef\xbb\xbf",
    b"\0" * 4096,
    b"\xff" * 4096,
)
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Between one and three of the damages below, one after the other."""
    for _ in range(random.randint(1, _MOST_TURNS)):
        content = random.choice(_DAMAGES)(content, random)
    return content


def _flip(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 3, 30)) if content else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _cut_out(content: bytes, random: Random) -> bytes:
    begin, end = _stretch(content, random)
    return content[:begin] + content[end:]


def _repeat(content: bytes, random: Random) -> bytes:
    begin, end = _stretch(content, random)
    times = random.choice((1, 1, 10, 100)) if end - begin < 10_000 else 1
    return content[:end] + content[begin:end] * times + content[end:]


def _splice(content: bytes, random: Random) -> bytes:
    begin, end = _stretch(content, random)
    target = random.randrange(len(content) + 1)
    return content[:target] + content[begin:end] + content[target + end - begin :]


def _number(content: bytes, random: Random) -> bytes:
    """A binary number of four or eight bytes that is often too large: sizes, counts, offsets."""
    width = random.choice((4, 8))
    number = random.choice(_NUMBERS) % (1 << 8 * width)
    at = random.randrange(len(content) + 1) & ~3
    return content[:at] + number.to_bytes(width, "little") + content[at + width :]


def _varint(content: bytes, random: Random) -> bytes:
    """A number as protocol buffers have it, which may be the length of what follows."""
    at = random.randrange(len(content) + 1)
    number = b"\xff" * random.choice((1, 4, 9, 12)) + b"\x01"
    return content[:at] + number + content[at + random.choice((0, 1)) :]


def _half_written(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)].ljust(len(content), b"\0")


def _insert(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    noise = random.randbytes(random.choice((1, 1, 8, 1000)))
    return content[:at] + noise + content[at:]


def _foreign(_content: bytes, random: Random) -> bytes:
    return random.choice(_FOREIGN)


def _stretch(content: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(content) + 1)
    most = random.choice((4, 64, len(content)))
    return begin, min(len(content), begin + random.randint(0, max(1, most)))


_DAMAGES: tuple[Damage, ...] = (
    _flip,
    _flip,
    _cut,
    _cut_out,
    _repeat,
    _splice,
    _number,
    _varint,
    _half_written,
    _insert,
    _foreign,
)
