"""ssh connections, with the user's keys, agent, configuration and known hosts.

asyncssh reads ~/.ssh/config and ~/.ssh/known_hosts, and talks to the agent. A host whose key is not
known there is refused: there is no option that changes this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byteprophet.errors import Error, JobFailed, UserError
from byteprophet.remote.hosts_file import SshHost

if TYPE_CHECKING:
    import asyncssh

_CONNECT_TIMEOUT_S = 15.0
_LOGIN_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 5.0
# A host that vanishes is noticed after about as long as heartbeats take.
_KEEPALIVE_S = 3.0
_KEEPALIVES = 4


def require_library() -> None:
    """Raises ``UserError`` if asyncssh is not installed."""
    try:
        import asyncssh  # noqa: F401
    except ImportError:
        raise UserError("--on ssh needs asyncssh: pip install 'byteprophet[ssh]'") from None


@asynccontextmanager
async def connected(host: SshHost) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A connection to ``host``.

    Raises ``UserError`` if there can be none, and ``JobFailed`` if it is lost in the block.
    """
    import asyncssh

    try:
        connection = await asyncssh.connect(
            host.name,
            connect_timeout=_CONNECT_TIMEOUT_S,
            login_timeout=_LOGIN_TIMEOUT_S,
            keepalive_interval=_KEEPALIVE_S,
            keepalive_count_max=_KEEPALIVES,
            **_own_options(host),
        )
    # ValueError: what the user's files or the host's name have, and asyncssh does not take.
    except (OSError, asyncssh.Error, asyncio.TimeoutError, ValueError) as error:
        raise UserError(f"host {host.name}: {_refusal(host, error)}") from None
    try:
        yield connection
    except (OSError, asyncssh.Error) as error:
        raise lost(host, error) from None
    finally:
        connection.close()
        try:
            await asyncio.wait_for(connection.wait_closed(), _CLOSE_TIMEOUT_S)
        except asyncio.TimeoutError:
            connection.abort()


def _own_options(host: SshHost) -> dict[str, Any]:
    """What the hosts file says, and the keys that ~/.ssh/config names, as far as they exist.

    Like OpenSSH, this ignores the others; asyncssh would refuse to connect.
    """
    import asyncssh

    given: dict[str, Any] = {"username": host.user, "port": host.port}
    own = {name: value for name, value in given.items() if value is not None}
    options = asyncssh.SSHClientConnectionOptions(
        host=host.name, config=(), client_keys=None, **own
    )
    keys: Any = options.config.get("IdentityFile", ())
    named = [Path(key).expanduser() for key in keys]
    there = [str(path) for path in named if path.exists()]
    if len(there) < len(named):
        own |= {"client_keys": there, "ignore_encrypted": True}
    return own


def lost(host: SshHost, error: Exception | None) -> Error:
    """The error that tells of a connection to ``host`` that ended before its role did."""
    import asyncssh

    if error is None or isinstance(error, (asyncssh.ConnectionLost, OSError)):
        why = "its ssh connection is lost: the host or its network is down"
    else:
        why = f"its ssh connection has ended: {error}"
    return JobFailed(f"host {host.name}: {why}")


def _refusal(host: SshHost, error: Exception) -> str:
    """Why there is no connection to ``host``, and what to do."""
    import asyncssh

    user = "" if host.user is None else f"{host.user}@"
    port = "" if host.port is None else f"-p {host.port} "
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            "its key is not the one in ~/.ssh/known_hosts, or is not there: compare and accept it "
            f"with: ssh {port}{user}{host.name}"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return (
            "it accepts none of your keys: start an agent with the right one (ssh-add), or: "
            f"ssh-copy-id {port}{user}{host.name}"
        )
    if isinstance(error, asyncio.TimeoutError):
        return f"ssh did not answer within {_CONNECT_TIMEOUT_S:.0f} s"
    if isinstance(error, UnicodeError):
        return f"this is no name of a host: {error}"
    if isinstance(error, ValueError):
        file = "known_hosts" if "known hosts" in str(error) else "config"
        return f"~/.ssh/{file} has something that asyncssh, our ssh client, does not take: {error}"
    reason = error.strerror if isinstance(error, OSError) else None
    return f"ssh cannot reach it: {reason or error}"
