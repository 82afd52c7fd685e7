"""Reads JSON value by value, so that a large file needs little memory.

Accepts some invalid JSON that profilers write: control characters in strings, and the bare words
inf and nan, which are read as null. Numbers with a decimal point stay text, because a float has
too few digits for nanoseconds since 1970.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from byteprophet.errors import UserError

_CHUNK = 1 << 16
_MOST = 1 << 24
_SPACE = re.compile(r"[ \t\r\n]*")
# Strings are matched so that they stay unchanged, even one whose end has not been read yet.
_BARE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[-+]?(?:inf|nan)(?=[\s,}\]])', re.DOTALL)
_LONGEST_TOKEN = 16
"""The longest token that can be parsed only as a whole (an escape, a word), in characters."""


class JsonStream:
    """The JSON in ``chunks``, which are the content of the file at ``path``; errors name it."""

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path = path
        self._chunks = _texts(path, chunks)
        self._decoder = json.JSONDecoder(parse_float=str, strict=False)
        self._text = ""
        self._at = 0
        self._line, self._column = 1, 1  # at the start of _text

    def peek(self) -> str:
        """The next character that is not whitespace, without taking it; "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self, letters: str) -> str:
        """Takes the next character that is not whitespace.

        Raises ``UserError`` if it is none of ``letters``.
        """
        letter = self.peek()
        if not letter or letter not in letters:
            raise self._wrong(f"Expecting {' or '.join(letters)}", self._at)
        self._at += 1
        return letter

    def value(self) -> Any:
        """Takes the next value.

        Raises ``UserError`` if it is not JSON, is cut off, or has more than 16 Mi characters.
        """
        self.peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                behind = error.pos - self._at
                bare = error.msg == "Expecting value" and self._without_bare_words()
                if bare or (self._may_go_on(error) and self._read_on()):
                    continue
                raise self._wrong(error.msg, self._at + behind) from None
            except RecursionError:
                raise UserError(f"{self._path}: is not a trace: it is nested too deeply") from None
            except ValueError as error:  # numbers of thousands of digits
                raise UserError(f"{self._path}: is not a trace: {error}") from None
            behind = end - self._at
            if end == len(self._text) and self._read_on():
                continue  # a number may go on
            self._at += behind
            return found

    def _read_on(self) -> bool:
        """Drops the text that was taken and reads more, at least as much as is left or a chunk.

        Returns False at the end.
        """
        rest = self._text[self._at :]
        if len(rest) > _MOST:
            raise UserError(f"{self._path}: is not a trace: a value in it has over {_MOST} letters")
        self._line, self._column = self._place(self._at)
        parts, wanted = [rest], max(_CHUNK, len(rest))
        while wanted > 0 and (text := next(self._chunks, "")):
            parts.append(text)
            wanted -= len(text)
        self._text, self._at = "".join(parts), 0
        return len(parts) > 1

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        unterminated = error.msg.startswith("Unterminated string")
        return unterminated or error.pos >= len(self._text) - _LONGEST_TOKEN

    def _without_bare_words(self) -> bool:
        """Replaces bare words from here on by null, and returns whether there were any."""
        rest = self._text[self._at :]
        text = _BARE.sub(lambda found: found[0] if found[0][0] == '"' else "null", rest)
        self._text = self._text[: self._at] + text
        return text != rest

    def _place(self, at: int) -> tuple[int, int]:
        """1-based line and column of index ``at`` of the text."""
        lines = self._text.count("\n", 0, at)
        if not lines:
            return self._line, self._column + at
        return self._line + lines, at - self._text.rindex("\n", 0, at)

    def _wrong(self, what: str, at: int) -> UserError:
        line, column = self._place(at)
        end = "" if self._text[at:].strip() else ", where the file ends"
        return UserError(
            f"{self._path}: is cut off or not JSON: {what} in line {line}, column {column}{end}"
        )


def _texts(path: Path, chunks: Iterator[bytes]) -> Iterator[str]:
    """Decodes ``chunks`` from their Unicode encoding and drops the byte order mark."""
    decoder, done = None, 0
    for chunk in chain(chunks, (b"",)):
        if decoder is None:
            encoding = json.detect_encoding(chunk[:4])
            if encoding == "utf-8-sig":
                encoding, done, chunk = "utf-8", 3, chunk[3:]
            decoder = codecs.getincrementaldecoder(encoding)("strict")
        for begin in range(0, max(1, len(chunk)), _CHUNK):
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk[begin : begin + _CHUNK], final=not chunk)
            except UnicodeDecodeError as error:
                if not chunk:
                    raise UserError(f"{path}: is cut off: it ends within a letter") from None
                at = done - pending + error.start
                raise UserError(
                    f"{path}: is not {error.encoding.upper()} text (byte {at})"
                ) from None
            done += len(chunk[begin : begin + _CHUNK])
            if text:
                yield text
