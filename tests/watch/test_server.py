"""The server: loopback only, nothing without the token; another viewer as a source."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from byteprophet.cli import watch as cli_watch
from byteprophet.errors import JobFailed, UserError
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.server import LiveServer
from byteprophet.watch.sources import RemoteWatch, Shared
from byteprophet.watch.tokens import is_right, new_token, token_in

from .hand_made import make_run, status, write_status

TOKEN = "a-token-for-tests"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    run = make_run(tmp_path / "run")
    write_status(run, status(0))
    with LiveServer(Shared(RunWatch(run)), TOKEN, lambda: "<p>page") as running:
        yield running


def get(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/state", "/metrics", "/nothing"])
@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN[:-1]}", "?t&t&t=%"]
)
def test_without_the_token_everything_is_refused(server: LiveServer, path: str, query: str) -> None:
    code, text, _ = get(server, path + query)
    assert (code, text) == (403, "the token is missing or wrong\n")


def test_a_wrong_token_in_a_header_is_refused(server: LiveServer) -> None:
    for given in (f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer ", "Bearer \xff"):
        assert get(server, "/state", Authorization=given)[0] == 403
    assert get(server, "/state", Authorization=f"bearer {TOKEN}")[0] == 200
    with socket.create_connection(("127.0.0.1", server.port), 5) as client:
        client.sendall(b"GET http://[ HTTP/1.0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.0 403"
    # A header that is there decides, whatever the address says.
    assert get(server, f"/state?token={TOKEN}", Authorization="Bearer wrong")[0] == 403


def test_with_the_token_there_is_page_state_and_metrics(server: LiveServer) -> None:
    code, text, headers = get(server, f"/?token={TOKEN}")
    assert (code, text) == (200, "<p>page")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    code, text, headers = get(server, f"/state?token={TOKEN}")
    assert code == 200
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(text)["workers"][0]["role"] == "worker-0"
    code, text, headers = get(server, "/metrics", Authorization=f"Bearer {TOKEN}")
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "byteprophet_iterations_total" in text
    assert get(server, f"/other?token={TOKEN}")[0] == 404


def test_only_get_is_answered(server: LiveServer) -> None:
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert get(server, f"/state?token={TOKEN}", method)[0] == 501


def test_it_listens_on_loopback_only(server: LiveServer) -> None:
    listening = [
        one.laddr.ip
        for one in psutil.Process().net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == server.port
    ]
    assert listening == ["127.0.0.1"]
    others = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    for address in others:
        with socket.socket() as client:
            client.settimeout(2)
            assert client.connect_ex((address, server.port)) != 0


def test_a_silent_client_keeps_nobody_waiting(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5):
        assert get(server, f"/state?token={TOKEN}")[0] == 200


def test_a_hundred_viewers_may_come_at_once(tmp_path: Path) -> None:
    server = LiveServer(Shared(RunWatch(tmp_path)), TOKEN, str)  # accepts nobody yet
    with ExitStack() as viewers:
        for _ in range(100):
            # The kernel drops what does not fit, and tries again only after a second.
            one = socket.create_connection(("127.0.0.1", server.port), 0.9)
            viewers.enter_context(one)
        viewers.enter_context(server)


def test_connections_without_the_token_stay_few(server: LiveServer) -> None:
    """Any user of this machine can open them; the oldest ones make room, whatever they do."""
    with ExitStack() as strangers:
        idle = [
            strangers.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
            for _ in range(100)
        ]
        assert get(server, f"/state?token={TOKEN}")[0] == 200
        assert [one.recv(1) for one in idle[:30]] == [b""] * 30
        idle[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.0 403"


def test_the_viewer_outlives_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([OSError(24, "Too many open files"), KeyboardInterrupt()])

    class Broken:
        def look(self) -> dict[str, Any]:
            raise next(looks)

    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        cli_watch._wait(Shared(Broken()))


def test_a_port_that_is_taken(server: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"port {server.port} of 127.0.0.1 cannot be used"):
        LiveServer(Shared(RunWatch(tmp_path)), TOKEN, str, server.port)


def test_another_viewer_is_a_source(server: LiveServer) -> None:
    state = RemoteWatch(server.address).look()
    assert state["run"] == "run"
    assert RemoteWatch(f"http://127.0.0.1:{server.port}", TOKEN).look()["run"] == "run"
    with pytest.raises(JobFailed, match="the token is wrong"):
        RemoteWatch(server.address + "x").look()
    with LiveServer(Shared(RemoteWatch(server.address + "x")), TOKEN, str) as between:
        code, text, _ = get(between, f"/state?token={TOKEN}")
        assert code == 502
        assert "the token is wrong" in text


def test_addresses_that_are_none() -> None:
    with pytest.raises(UserError, match="give the whole address"):
        RemoteWatch("http://127.0.0.1:80")
    with pytest.raises(UserError, match="give the whole address"):
        RemoteWatch("https://127.0.0.1:80/?token=a")
    with pytest.raises(UserError, match=r"ssh -L 80:127\.0\.0\.1:80 10\.0\.0\.1"):
        RemoteWatch("http://10.0.0.1:80/?token=a")
    with pytest.raises(UserError, match="is not an address"):
        RemoteWatch("http://127.0.0.1:port/?token=a")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(JobFailed, match="does not answer"):
            RemoteWatch(f"http://127.0.0.1:{port}/?token=a").look()


def test_what_is_no_viewer_is_told() -> None:
    with pytest.raises(UserError, match="the token in the address has a letter that none has"):
        RemoteWatch("http://127.0.0.1:80/?token=a b")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            client, _ = other.accept()
            with client:
                client.recv(1000)
                client.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(JobFailed, match="what answers there is no viewer"):
            RemoteWatch(f"http://127.0.0.1:{other.getsockname()[1]}/?token=a").look()
        thread.join()


def test_a_token_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_in(path)
    assert token_in(path) == token
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(UserError, match="others can read this token"):
        token_in(path)
    path.chmod(0o600)
    for content in ("short\n", "a b" * 20, "x" * 2000, ""):
        path.write_text(content)
        with pytest.raises(UserError, match="must hold one token"):
            token_in(path)
    with pytest.raises(UserError, match="cannot be written"):
        token_in(tmp_path / "missing" / "token")
    with pytest.raises(UserError, match="Is a directory"):
        token_in(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="link: there is no such file"):
        token_in(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "token"]


def test_tokens_are_compared_whole() -> None:
    assert new_token() != new_token()
    assert is_right("abc", "abc")
    assert not is_right("abc", None)
    assert not is_right("abc", "")
    assert not is_right("abc", "ab\udc80")
