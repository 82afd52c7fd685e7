from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from byteprophet.cli.main import COMMANDS, run_cli
from byteprophet.launcher.forked_process import VARIABLE
from byteprophet.launcher.leftovers import marked_processes


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "byteprophet", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("byteprophet ")
    assert done.stderr == ""


@pytest.mark.usefixtures("default_signals")
def test_an_interrupt_during_imports_has_no_traceback() -> None:
    program = """
import os, signal, sys
class Interrupt:
    def find_spec(name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
from byteprophet.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


_SEARCH = "simulate gpt3-175b --cluster dgx-a100 --gpus 1024 --batch 1536"


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_a_search_with_all_its_processes(signum: int, tmp_path: Path) -> None:
    search = subprocess.Popen(
        [sys.executable, "-m", "byteprophet", *_SEARCH.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "BYTEPROPHET_RUN": str(tmp_path)},
    )
    with search:
        while len(marked_processes(str(tmp_path))) < 3:  # itself, a tracker, and a process
            assert search.poll() is None
            time.sleep(0.05)
        if signum == signal.SIGKILL:  # in the middle of a start it cannot be deferred
            time.sleep(1.0)
        search.send_signal(signum)
        _, errors = search.communicate(timeout=60)
    assert "Traceback" not in errors
    if signum == signal.SIGKILL:
        assert search.returncode == -signum
    else:
        assert search.returncode == 128 + signum
        assert f"byteprophet: error: ended by signal {signum}\n" in errors
    given_up_s = time.monotonic() + 20
    while marked_processes(str(tmp_path)):
        assert time.monotonic() < given_up_s
        time.sleep(0.05)


def started_by(
    before: str, arguments: list[str], directory: Path
) -> subprocess.CompletedProcess[str]:
    """The command line of ``arguments``, in a process that has run ``before``."""
    program = f"""
import os, signal, sys
{before}
os.execv(sys.executable, [sys.executable, "-m", "byteprophet", *sys.argv[1:]])
"""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=directory,
        env={**os.environ, VARIABLE: "0"},  # its workers need nothing that takes time to import
    )


def test_a_directory_that_was_removed_is_told(tmp_path: Path) -> None:
    done = started_by("os.rmdir(os.getcwd())", ["sizes"], tmp_path)
    said = "byteprophet: error: the current directory has been removed: change to another one\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_job_whose_parent_ignores_ends_of_children_is_told_how_roles_ended(
    tmp_path: Path,
) -> None:
    job = ["run", "--servers", "0", "--workers", "1", "--", sys.executable, "-c", "print(1)"]
    done = started_by("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", job, tmp_path)
    assert done.returncode == 0, done.stderr


def test_messages_are_no_part_of_the_results_where_standard_error_is_closed(
    tmp_path: Path,
) -> None:
    job = ["run", "--servers", "0", "--workers", "1", "--json", "--", sys.executable, "-c", "0"]
    done = started_by("os.close(2)", job, tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["run", "--help"], ["matplotlib", "numpy", "torch"]),
        (["--help"], ["matplotlib", "torch"]),
        (
            ["simulate", "gpt3-175b", "--cluster", "dgx-a100", "--gpus", "8", "--strategy", "tp=8"],
            ["matplotlib", "torch"],
        ),
    ],
    ids=["a job", "all commands", "a simulation"],
)
def test_a_command_does_not_wait_for_what_it_does_not_need(
    arguments: list[str], unneeded: list[str]
) -> None:
    looks = f"import sys; sys.exit(not sys.modules.keys().isdisjoint({unneeded}))"
    runs = f"from byteprophet.cli.main import run_cli; assert run_cli({arguments}) == 0"
    done = subprocess.run([sys.executable, "-c", f"{runs}; {looks}"], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("command", [[], ["strategy"], ["cluster"]])
def test_lists_of_commands_have_whole_sentences(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*command, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_every_command_has_help_with_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: byteprophet" in shown
    assert "Example: byteprophet" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing command; see --help"),
        (["fly"], "No such command 'fly'; see --help"),
        (["run"], "Missing argument 'COMMAND'; see --help"),
        (["run", "--wrokers", "2", "true"], "No such option: --wrokers"),
        (["run", "--workers", "two", "true"], "Invalid value for '--workers'"),
        (["run", "--bandwidth", "1gbyte", "true"], "use e.g. 500mbit, 1gbit, unlimited"),
        (["run", "--worker-bandwidth", "1gbit", "true"], "use worker=rate, e.g. "),
        (["run", "--worker-bandwidth", "one=1gbit", "true"], "use worker=rate, e.g. "),
        (["run", "--worker-bandwidth", "1=fast", "true"], "' is not a rate: use e.g. 500mbit"),
        (["run", "--worker-bandwidth", "1=unlimited", "true"], "needs a rate other than unlimited"),
        (["run", "--worker-bandwidth", "2=1gbit", "true"], "worker 2: there is no such worker"),
        (
            ["run", "--server-bandwidth", "1gbit", "true"],
            "use server=rate, e.g. --server-bandwidth",
        ),
        (["run", "--server-bandwidth", "1=1gbit", "true"], "server 1: there is no such server"),
        (
            ["run", "--worker-bandwidth", "1=1gbit", "--worker-bandwidth", "1=2gbit", "true"],
            "worker 1 already has another rate",
        ),
        (["run", "--scheduler", "best", "true"], "choose one of stock, fifo, "),
        (["run", "--set", "window", "true"], "use name=integer"),
        (["run", "--set", "window=1", "--scheduler", "p3", "true"], "it accepts "),
        (["run", "--workers", "0", "true"], "workers 0"),
        (["run", "--record-steps", "1:2", "true"], "--record-steps: needs --record"),
        (["run", "--record", "--record-steps", "2", "true"], "must be FIRST:STOP, e.g. 10:20"),
        (["run", "no-such-program"], "command 'no-such-program'"),
        (["run", "--scheduler", "stock", "--profile", "p.json", "true"], "stock schedules nothing"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("byteprophet: error: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err
