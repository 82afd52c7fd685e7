from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.remote.hosts_file import read_hosts_file


def read(tmp_path: Path, text: str) -> list[object]:
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    return list(read_hosts_file(path))


def test_hosts_have_what_is_common_and_what_is_their_own(tmp_path: Path) -> None:
    text = """
schema = 1
user = "me"
directory = "/data"
[[host]]
name = "a"
[[host]]
name = "b"
user = "you"
port = 2222
address = "10.0.0.2"
workers = 0
servers = 2
"""
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    first, second = read_hosts_file(path)
    assert (first.name, first.user, first.port, first.workers) == ("a", "me", None, None)
    assert (first.directory, first.python, first.scratch) == ("/data", sys.executable, "/tmp")
    assert (second.user, second.port, second.address) == ("you", 2222, "10.0.0.2")
    assert (second.workers, second.servers) == (0, 2)


def test_the_example_can_be_read() -> None:
    path = Path(__file__).parents[2] / "launcher" / "ssh" / "hosts.toml"
    assert [host.name for host in read_hosts_file(path)] == ["parameters", "gpu-1", "gpu-2"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = 2", "hosts.toml: schema: must be 1"),
        ("schema = 1", r"host: there must be a table \[\[host\]\] for each host"),
        ("schema = 1\nhosts = 3\n[[host]]\nname = 'a'", "hosts: there is no such field; there are"),
        ("schema = 1\n[[host]]\naddress = '10.0.0.1'", "host 0: name: is needed"),
        ("schema = 1\n[[host]]\nname = '-oProxyCommand=x'", "name: is needed, as one gives it"),
        ("schema = 1\n[[host]]\nname = 'a'\naddress = 'b'", "host a: address 'b': must be an IPv4"),
        ("schema = 1\n[[host]]\nname = 'a'\nport = 70000", "host a: port 70000: must be between"),
        ("schema = 1\n[[host]]\nname = 'a'\nworkers = -1", "host a: workers -1: must be a whole"),
        ("schema = 1\n[[host]]\nname = 'a'\ngpus = 1", "host a: gpus: there is no such field"),
        ("schema = 1\n" + "[[host]]\nname = 'a'\n" * 2, "host a: is listed twice; list it once"),
        ("schema = 1\n[[host]]\nname = 'a'\npython = 3", "host a: python 3: must be text"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, text)
