"""The secret that a viewer asks for: everybody on this machine can reach its port."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from byteprophet.errors import UserError
from byteprophet.input_files import check_file, read_text
from byteprophet.whole_files import writing

_SHORTEST, _LONGEST = 16, 512
_VALID = re.compile(r"[A-Za-z0-9_.~-]+")


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


def token_in(path: Path, *, may_be_made: bool = True) -> str:
    """The token in the file at ``path``, which is made if it does not exist and that is allowed.

    Only its owner may read it. Raises ``UserError`` if others may, or if it has no token.
    """
    if may_be_made:
        with writing(path), suppress(FileExistsError):
            return _made(path)
    check_file(path)
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path}: others can read this token: chmod 600 {path}")
    token = read_text(path).strip()
    if not _VALID.fullmatch(token) or not _SHORTEST <= len(token) <= _LONGEST:
        raise UserError(
            f"{path}: must hold one token of {_SHORTEST} to {_LONGEST} letters, digits, '-' or "
            "'_'; this command fills a new file by itself"
        )
    return token


def _made(path: Path) -> str:
    """The token in a new file. Whoever finds the file finds all of it."""
    token = new_token()
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # mode 600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        os.link(partial, path)  # which replaces nothing
    finally:
        Path(partial).unlink()
    return token


def is_right(token: str, given: str | None) -> bool:
    """Whether ``given`` is the token. How long this takes does not depend on where they differ."""
    return hmac.compare_digest(token.encode(), (given or "").encode("utf-8", "replace"))
