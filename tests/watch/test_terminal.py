"""The view in the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from byteprophet.cli.main import run_cli
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.terminal import sparkline, view

from .hand_made import MS_NS, end_run, event, link, make_run, plan, status, write_status


def text_of(state: object) -> str:
    output = io.StringIO()
    Console(file=output, width=120, markup=False, highlight=False).print(view(state))  # type: ignore[arg-type]
    return output.getvalue()


def test_a_running_job(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    watch = RunWatch(run)
    watch.look()
    wait = {"name": "layer.weight", "count": 4, "wait_ns": 20 * MS_NS}
    write_status(run, status(0, links=[link()], waits=[wait]))
    write_status(run, status(1))
    watch.look()
    later = {"monotonic_ns": 11_000 * MS_NS, "waits": [wait]}
    write_status(run, status(0, links=[link(push_bytes=12_500_000)], **later))
    (run / "control.jsonl").write_text(plan(3) + event("adopted", plan=3, worker="worker-0"))
    with (run / "logs" / "worker-0.log").open("a") as log:
        log.write("byteprophet: warning: [red]\x1b[2Jno\n")
    shown = text_of(watch.look())
    for expected in (
        "running", "iteration 3, median 100.0 ms", "predicted 90.0 ms by plan 3", "100 Mbit/s",
        "waited for layer.weight: 20.0 ms in 4 waits",
        "plan 3 from iteration 30, adopted by 1 of 2",
        "[worker-0] [red]\\x1b[2Jno", "956 Mbit/s",
    ):  # fmt: skip
        assert expected in shown
    assert "\x1b" not in shown
    assert "in order of arrival" not in shown
    with (run / "control.jsonl").open("a") as control:
        control.write(plan(4, in_order=1) + event("adopted", plan=4, worker="worker-0"))
    shown = " ".join(text_of(watch.look()).split())
    assert "predicted 90.0 ms, in order of arrival: the processor is the limit" in shown


def test_rows_beyond_the_first_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    watch = RunWatch(run)
    for look in range(2):
        links = [link(server, push_bytes=1000 * look) for server in range(20)]
        write_status(run, status(0, links=links, monotonic_ns=(1000 + look) * MS_NS))
        for rank in range(1, 17):
            write_status(run, status(rank))
        state = watch.look()
    shown = text_of(state)
    assert "and 4 more links" in shown
    assert "and 1 more worker " in shown.replace("\n", " ")


def test_the_command_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    write_status(run, status(0, ended=True, watching=False))
    end_run(run)
    assert run_cli(["watch", str(tmp_path), "--terminal"]) == 0
    assert "run  done" in capsys.readouterr().out
    assert run_cli(["watch", str(run), "--json"]) == 0
    assert '"status": "done"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing"], "missing: there is no such run directory"),
        (["http://10.0.0.1:80/?token=a"], "forward the port"),
        (["--metrics", "0"], "--metrics"),
        (["--json", "--metrics", "9464"], "--metrics cannot be combined with --json"),
        (["--dashboard", "--terminal"], "--terminal cannot be combined with --dashboard"),
        (["--terminal", "--token-file", "a"], "nothing is served that would need a token"),
        (["http://127.0.0.1:1", "--token-file", "typo"], "typo: there is no such file"),
    ],
)
def test_wrong_usage(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "run")
    assert run_cli(["watch", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_bars() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == ""
    assert sparkline([0, 16, 8, 15]) == "▁█▅█"
    assert len(sparkline(list(range(1000)))) == 60
