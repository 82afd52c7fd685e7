"""The CURVE keys of a job: made once, and kept in files that only their user can read.

    DIRECTORY (0700)   controller.key_secret  controller.key  worker.key_secret  worker.key

A ``.key`` file has the public key; a ``.key_secret`` file has both keys (pyzmq's format). A
worker's host needs ``worker.key_secret`` and ``controller.key``; the controller's host needs the
other two.

libzmq is imported when keys are made or read: most roles of a job only copy them.
"""

from __future__ import annotations

import shutil
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from byteprophet.errors import UserError
from byteprophet.input_files import check_file

Side = Literal["controller", "worker"]
_OTHER: dict[Side, Side] = {"controller": "worker", "worker": "controller"}
_KEY_BYTES = 32
_MOST_BYTES = 1 << 20  # of a key file, which has only a few lines


@dataclass(frozen=True)
class Keys:
    """One side's own key pair and the other side's public key, as z85 text in bytes."""

    public: bytes
    secret: bytes
    peer: bytes


def make_keys(directory: Path) -> None:
    """Makes ``directory`` with both key pairs.

    Raises ``UserError`` if it exists or cannot be made.
    """
    import zmq.auth

    try:
        # Others cannot look into the directory, so a file is safe even before its own chmod.
        directory.mkdir(mode=0o700, parents=True)
        try:
            for side in _OTHER:
                _, secret = zmq.auth.create_certificates(directory, side)
                Path(secret).chmod(0o600)
        except OSError:  # an incomplete directory would look complete the next time
            shutil.rmtree(directory, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"keys {directory}: cannot be made: {error.strerror}") from None


def read_keys(directory: Path, side: Side) -> Keys:
    """The keys of ``side``.

    Raises ``UserError`` if a file is missing, is broken, or has secrets that others can read.
    """
    import zmq.auth

    own_path = directory / f"{side}.key_secret"
    peer_path = directory / f"{_OTHER[side]}.key"
    try:
        mode = own_path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UserError(f"keys {own_path}: others can read it; chmod 600 {own_path}")
        for path in (own_path, peer_path):
            check_file(path, _MOST_BYTES)
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
        raise UserError(f"keys {directory}: {own_path.name} or {peer_path.name} is not a CURVE key")
    return Keys(public, secret, peer)


def key_texts(directory: Path, side: Side) -> dict[str, str]:
    """The content of the files in ``directory`` that the host of ``side`` needs, by their names."""
    names = (f"{side}.key_secret", f"{_OTHER[side]}.key")
    return {name: (directory / name).read_text(encoding="ascii") for name in names}


def keep_key_texts(directory: Path, texts: Mapping[str, str]) -> None:
    """Makes ``directory`` with files as ``key_texts`` returned them on another host.

    Raises ``UserError`` for other names, or if the directory exists or cannot be made.
    """
    known = {f"{side}{ending}" for side in _OTHER for ending in (".key_secret", ".key")}
    unknown = sorted(texts.keys() - known)
    if unknown:
        raise UserError(f"keys: {unknown[0]!r} is not a key file's name")
    try:
        directory.mkdir(mode=0o700, parents=True)
        for name, text in texts.items():
            path = directory / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="ascii")
    except OSError as error:
        raise UserError(f"keys {directory}: cannot be made: {error.strerror}") from None


def _is_key(text: bytes) -> bool:
    """Whether ``text`` is z85 of 32 bytes; libzmq accepts no other keys."""
    from zmq.utils import z85

    try:
        return len(z85.decode(text)) == _KEY_BYTES
    except (KeyError, ValueError, struct.error):  # raised for wrong characters and lengths
        return False
