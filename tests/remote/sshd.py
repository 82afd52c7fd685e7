"""Real sshd's with keys of their own, each on a port of loopback or on a host of a cluster."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from byteprophet.launcher.checks import root_port

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")


def why_not() -> str | None:
    """Why there can be no sshd here; None: there can."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        return "sshd is not installed: apt-get install openssh-server"
    if importlib.util.find_spec("asyncssh") is None:
        return "asyncssh is not installed: pip install asyncssh"
    return None


def make_key(path: Path) -> str:
    """A key pair; its public half as one line."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30)
    return path.with_suffix(".pub").read_text().strip()


@final
class User:
    """Somebody with a home directory, a key, and known hosts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._ssh = home / ".ssh"
        self._ssh.mkdir(parents=True, mode=0o700)
        self.public_key = make_key(self._ssh / "id_ed25519")

    def know(self, name: str, port: int, key: str) -> None:
        """Adds a host to the known ones."""
        with (self._ssh / "known_hosts").open("a") as file:
            file.write(f"{name if port == 22 else f'[{name}]:{port}'} {key}\n")

    def forget_hosts(self) -> None:
        """Knows no host any more."""
        (self._ssh / "known_hosts").unlink()

    @property
    def environment(self) -> dict[str, str]:
        """For a process of this user. There is no agent."""
        others = {n: v for n, v in os.environ.items() if n != "SSH_AUTH_SOCK"}
        return {**others, "HOME": str(self.home)}


@final
class Sshd:
    """A server on ``address`` that accepts ``user``. ``inside``: what starts commands there."""

    def __init__(
        self, directory: Path, address: str, user: User, inside: Sequence[str] = ()
    ) -> None:
        directory.mkdir()
        self.address = address
        self.port = root_port(None, "127.0.0.1") if not inside else 22
        self.key = make_key(directory / "host_key")
        (directory / "authorized_keys").write_text(user.public_key + "\n")
        config = directory / "sshd_config"
        config.write_text(
            f"ListenAddress {_with_port(address, self.port)}\nHostKey {directory}/host_key\n"
            f"AuthorizedKeysFile {directory}/authorized_keys\nPidFile none\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "Subsystem sftp internal-sftp\nPermitRootLogin prohibit-password\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        assert SSHD is not None
        self._log = directory / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*inside, SSHD, "-D", "-e", "-f", str(config)],
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        user.know(address, self.port, self.key)
        self._wait()

    def _wait(self) -> None:
        deadline_s = time.monotonic() + 10
        while "Server listening" not in self._log.read_text():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.02)

    def close(self) -> None:
        """Ends the server."""
        self.process.terminate()
        self.process.wait(10)


def _with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_table(sshd: Sshd, directory: Path, **fields: object) -> dict[str, object]:
    """The host's table in a hosts file."""
    return {
        "name": sshd.address,
        "port": sshd.port,
        "directory": str(directory),
        "scratch": str(directory),
        **fields,
    }
