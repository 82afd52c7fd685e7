"""The log: one event per line, whoever writes; what is no log is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.control.log import NAME, EventLog, read_events
from byteprophet.errors import UserError

from .test_messages import PLAN


def a_log(run: Path) -> None:
    first = EventLog(run, "first life")
    fields = PLAN.model_dump(mode="json", by_alias=True)
    first.record("plan", **fields, workers=["worker-0", "worker-1"])
    first.record("adopted", plan=1, worker="worker-0", iteration=7)
    first.record("outcome", plan=1, measured_iteration_ns=120, error=0.2, iterations=10)
    second = EventLog(run, "second life")
    second.record("adopted", plan=1, worker="worker-1", iteration=7)
    second.record("refused", by="controller", reason="not JSON", count=3, detail="x")
    first.close()
    second.close()


def used(event: str, **fields: object) -> str:
    return json.dumps({"schema": 1, "event": event, "controller": "a life", **fields})


def test_events_of_several_lives_come_back_in_order(tmp_path: Path) -> None:
    a_log(tmp_path)
    events = read_events(tmp_path / NAME)
    assert [event["event"] for event in events] == [
        "plan", "adopted", "outcome", "adopted", "refused",
    ]  # fmt: skip
    assert len({event["controller"] for event in events}) == 2
    times = [event["monotonic_ns"] for event in events]
    assert times == sorted(times)


def test_the_last_plan_is_a_file_of_its_own(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "life")
    log.write_plan(PLAN)
    log.close()
    assert type(PLAN).model_validate_json((tmp_path / "plan.json").read_bytes()) == PLAN
    assert not list(tmp_path.glob("*.partial"))


def test_what_is_not_written_yet_is_left_out(tmp_path: Path) -> None:
    a_log(tmp_path)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"schema": 1, "event": "pl')
    assert len(read_events(tmp_path / NAME)) == 5


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nonsense", "line 6: is not an event"),
        ("[1]", "line 6: is not an event"),
        ('{"event": 1}', "line 6: is not an event"),
        ('{"schema": 2, "event": "plan"}', "schema 2, not 1"),
        ('{"schema": 1, "event": "left"}', "line 6: controller must be a text, got None"),
        (used("plan", number=1, at_iteration=2, workers=3), "workers must be a list, got 3"),
        (used("outcome", plan=1, measured_iteration_ns=10**300), "must be a whole number up to"),
        (used("refused", by="a", reason="b", count=-1), "count must be a whole number"),
        (used("adopted", plan=1, worker=["a"]), "worker must be a text"),
    ],
)
def test_what_is_no_log_is_refused(line: str, named: str, tmp_path: Path) -> None:
    a_log(tmp_path)
    with (tmp_path / NAME).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=named):
        read_events(tmp_path / NAME)


def test_a_log_that_cannot_be_written_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path, "life")
    log.close()  # as good as a full disk: every write fails
    for _ in range(3):
        log.record("plan")
    assert capsys.readouterr().err.count("the log has gaps") == 1
    with pytest.raises(UserError, match="cannot be written"):
        EventLog(tmp_path / NAME, "life")


def test_the_directory_of_a_log_is_made(tmp_path: Path) -> None:
    EventLog(tmp_path / "runs" / "mine", "life").close()
    assert read_events(tmp_path / "runs" / "mine" / NAME) == []


def test_the_command_shows_what_was_predicted_and_what_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_log(tmp_path)
    assert run_cli(["plan", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for text in ("2 of 2", "+20.0%", "first", "2 lives", "(3x)"):
        assert text in shown
    assert "no plan" not in shown
    log = EventLog(tmp_path, "a later life")
    log.record("no plan", reason="first", error="the link is too slow")
    log.close()
    assert run_cli(["plan", str(tmp_path)]) == 0
    assert "no plan after first: the link is too slow" in capsys.readouterr().out
    assert run_cli(["plan", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["events"]) == 6


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "{tmp}"], "neither a run directory nor has any in it"),
        (["control", "--listen", "tcp://127.0.0.1:1", "--keys", "{tmp}/keys"], "--job"),
        (["control", "--listen", "nowhere", "--keys", "{tmp}/keys", "--job", "a:1"], "--listen"),
        (["control", "--listen", "tcp://127.0.0.1:1", "--keys", "{tmp}", "--job", "a:1"], "keys"),
        (["control", "--keys", "{tmp}"], "--listen"),
        (["run", "--scheduler", "p3", "--controller", "--", "true"], "uses no plans"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.nice", lambda _by: 0)  # of this process, which goes on
    assert run_cli([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert named in error
