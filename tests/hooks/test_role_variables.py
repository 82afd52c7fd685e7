"""What a role's environment must say: one line and status 2 where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.hooks.role_variables import check_launch, check_server, check_worker

SERVER = {
    "DMLC_ROLE": "server",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
}
LAUNCHED = {**SERVER, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"}
WORKER = {**LAUNCHED, "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
ALONE = {
    name: WORKER[name] for name in WORKER if name.startswith(("BYTEPS_", "DMLC_WORKER_ID"))
} | {"DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}


def check(kind: str, environment: dict[str, str]) -> None:
    if kind == "server":
        check_server(environment)
    elif kind == "worker":
        check_worker(environment)
    else:
        check_launch(["python", "train.py"], environment)


def refusal(kind: str, environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        check(kind, environment)
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("byteprophet: error: ")
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize(
    ("kind", "environment"),
    [
        ("server", SERVER),
        ("server", {**SERVER, "DMLC_ROLE": "scheduler"}),
        ("launch", SERVER),
        ("launch", LAUNCHED),
        ("worker", WORKER),
        ("worker", {**WORKER, "DMLC_NUM_WORKER": " 2 "}),
        ("worker", ALONE),
        ("launch", {**ALONE, "DMLC_ROLE": "worker"}),
        ("worker", {**ALONE, "BYTEPS_FORCE_DISTRIBUTED": "0"}),
    ],
)
def test_what_is_right_passes(kind: str, environment: dict[str, str]) -> None:
    check(kind, environment)


@pytest.mark.parametrize(
    ("kind", "whole"), [("server", SERVER), ("launch", LAUNCHED), ("worker", WORKER)]
)
def test_each_variable_is_missed_by_name(
    kind: str, whole: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in whole:
        for rest in (
            {other: value for other, value in whole.items() if other != name},
            {**whole, name: " "},
        ):
            assert refusal(kind, rest, capsys).startswith(f"byteprophet: error: {name}: not set")
    everything = refusal(kind, {}, capsys)
    assert all(name in everything for name in whole if kind != "launch" or name in SERVER)


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        ("server", {"DMLC_ROLE": "worker"}, "DMLC_ROLE='worker': must be scheduler or server here"),
        ("launch", {"DMLC_ROLE": "Worker"}, "must be scheduler or server or worker here"),
        ("worker", {"DMLC_ROLE": "server"}, "DMLC_ROLE='server': must be worker here"),
        ("server", {"DMLC_NUM_WORKER": "0"}, "DMLC_NUM_WORKER='0': must be a whole number from 1"),
        ("server", {"DMLC_NUM_WORKER": "two"}, "DMLC_NUM_WORKER='two': must be a whole number"),
        ("server", {"DMLC_NUM_SERVER": "-1"}, "DMLC_NUM_SERVER='-1': must be a whole number"),
        ("server", {"DMLC_SERVER_ID": "7"}, "DMLC_SERVER_ID='7': must be a whole number from 0"),
        ("server", {"DMLC_NUM_WORKER": 30 * "9"}, "must be a whole number from 1"),
        ("server", {"DMLC_PS_ROOT_PORT": "http"}, "must be a whole number from 1 to 65535"),
        ("server", {"DMLC_PS_ROOT_PORT": "65536"}, "must be a whole number from 1 to 65535"),
        ("worker", {"DMLC_PS_ROOT_PORT": "0"}, "DMLC_PS_ROOT_PORT='0': must be a whole number"),
        ("worker", {"DMLC_NUM_SERVER": "0"}, "DMLC_NUM_SERVER='0': must be a whole number from 1"),
        (
            "worker",
            {"DMLC_WORKER_ID": "2"},
            "'2': must be a whole number from 0 to 1, as DMLC_NUM_",
        ),
        ("launch", {"DMLC_WORKER_ID": "x"}, "DMLC_WORKER_ID='x': must be a whole number from 0"),
        ("worker", {"BYTEPS_LOCAL_SIZE": "0"}, "BYTEPS_LOCAL_SIZE='0': must be a whole number"),
        ("worker", {"BYTEPS_LOCAL_RANK": "1"}, "from 0 to 0, as BYTEPS_LOCAL_SIZE is 1"),
        (
            "worker",
            {"BYTEPS_SOCKET_PATH": "/no/where"},
            "BYTEPS_SOCKET_PATH='/no/where': must be a",
        ),
    ],
)
def test_what_is_wrong_is_named(
    kind: str, wrong: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"server": SERVER, "launch": LAUNCHED, "worker": WORKER}[kind]
    assert says in refusal(kind, {**whole, **wrong}, capsys)


def test_a_path_that_is_too_long_for_sockets_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / (88 * "x")
    long.mkdir()
    line = refusal("worker", {**WORKER, "BYTEPS_SOCKET_PATH": str(long)}, capsys)
    assert "must be of 88 bytes at most" in line
    check("worker", {**WORKER, "BYTEPS_SOCKET_PATH": "/tmp"})


def test_a_worker_alone_needs_servers_where_they_are_forced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refusal("worker", {**ALONE, "BYTEPS_FORCE_DISTRIBUTED": "1"}, capsys)
    assert "DMLC_ROLE, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT: not set" in line


def test_a_worker_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_launch([], LAUNCHED)
    assert "no command" in capsys.readouterr().err
    check_launch([], SERVER)
