"""The CURVE keys of a job: made once, kept in files that only their user can read.

    DIRECTORY (0700)   controller.key_secret  controller.key  worker.key_secret  worker.key

The ``.key`` files are public keys, the ``.key_secret`` files hold both (pyzmq's format). A worker's
host needs ``worker.key_secret`` and ``controller.key``; the controller's the other two.
"""

from __future__ import annotations

import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import zmq.auth
from zmq.utils import z85

from byteprophet.errors import UserError

Side = Literal["controller", "worker"]
_OTHER: dict[Side, Side] = {"controller": "worker", "worker": "controller"}
_KEY_BYTES = 32


@dataclass(frozen=True)
class Keys:
    """One side's own pair and the other side's public key, as z85 text in bytes."""

    public: bytes
    secret: bytes
    peer: bytes


def make_keys(directory: Path) -> None:
    """Makes ``directory`` and both pairs in it; UserError if it exists or cannot be made."""
    try:
        # Others cannot look into it, so it does not matter who sees a file before its own chmod.
        directory.mkdir(mode=0o700, parents=True)
        for side in _OTHER:
            _, secret = zmq.auth.create_certificates(directory, side)
            Path(secret).chmod(0o600)
    except OSError as error:
        raise UserError(f"keys {directory}: cannot be made: {error.strerror}") from None


def read_keys(directory: Path, side: Side) -> Keys:
    """The keys of ``side``; UserError for what is missing, broken, or readable by others."""
    own_path = directory / f"{side}.key_secret"
    peer_path = directory / f"{_OTHER[side]}.key"
    try:
        mode = own_path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"keys {own_path}: others can read it; chmod 600 {own_path}")
        public, secret = zmq.auth.load_certificate(own_path)
        peer, _ = zmq.auth.load_certificate(peer_path)
    except OSError as error:
        what = error.strerror or "there is no such file"
        raise UserError(f"keys {directory}: {own_path.name}, {peer_path.name}: {what}") from None
    except ValueError as error:
        raise UserError(f"keys {directory}: {error}") from None
    except IndexError:  # a line without "="
        public, secret, peer = b"", b"", b""
    if secret is None or not all(_is_key(key) for key in (public, secret, peer)):
        raise UserError(f"keys {directory}: {own_path.name} or {peer_path.name} is no CURVE key")
    return Keys(public, secret, peer)


def _is_key(text: bytes) -> bool:
    """Whether it is z85 of 32 bytes, without which libzmq takes no key."""
    try:
        return len(z85.decode(text)) == _KEY_BYTES
    except (KeyError, ValueError, struct.error):  # what it raises for other characters and numbers
        return False
