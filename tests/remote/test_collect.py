"""What a role elsewhere has written becomes the job's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from byteprophet.launcher.checks import LOOPBACK
from byteprophet.launcher.job_file import Address
from byteprophet.launcher.restarts import ATTEMPTS
from byteprophet.launcher.spec import JobSpec, Limits
from byteprophet.remote import mpi
from byteprophet.remote.client_limits import ENDING_S, FETCH_TIMEOUT_S, with_client_limits
from byteprophet.remote.fetching import fetching, partial_of
from byteprophet.remote.job import ROLES, collect, needed_paths


def test_a_role_without_files_gives_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a controller that was ended while it started, after the last role with files."""
    directory = tmp_path / ROLES / "worker-0"
    directory.mkdir(parents=True)
    (directory / "written").write_text("")
    assert collect(tmp_path, "worker-0") == []
    assert collect(tmp_path, "controller") == []
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert capsys.readouterr().err == ""


def wrote(run: Path, role: str, text: str) -> None:
    directory = run / ROLES / role / "results"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.txt").write_text(text)


def test_what_a_later_start_wrote_takes_the_place_of_the_earlier(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrote(tmp_path, "worker-0", "by start 0")
    collect(tmp_path, "worker-0")
    time.sleep(0.02)  # the clock of files is coarse
    aside = tmp_path / ATTEMPTS / "0"
    aside.mkdir(parents=True)
    wrote(tmp_path, "worker-0", "by start 1")
    collect(tmp_path, "worker-0")
    assert (tmp_path / "results" / "model.txt").read_text() == "by start 1"
    assert capsys.readouterr().err == ""


def test_a_file_that_two_roles_wrote_is_kept_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("worker-0", "worker-1"):
        wrote(tmp_path, role, f"by {role}")
        collect(tmp_path, role)
    assert (tmp_path / "results" / "model.txt").read_text() == "by worker-0"
    kept = tmp_path / ROLES / "worker-1"
    assert (kept / "results" / "model.txt").read_text() == "by worker-1"
    said = f"results/model.txt: worker-1 and another role wrote it: that of worker-1 is in {kept}"
    assert said in capsys.readouterr().err
    wrote(tmp_path, "worker-2", "by worker-0")
    collect(tmp_path, "worker-2")
    assert not (tmp_path / ROLES / "worker-2").exists()


def test_links_are_moved_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for start, step in enumerate(("step-500", "step-900")):
        directory = tmp_path / ROLES / "worker-0"
        (directory / "ckpt" / step).mkdir(parents=True)
        (directory / "ckpt" / step / "model.pt").write_text(step)
        (directory / "ckpt" / "latest").symlink_to(step)
        (directory / "newest.pt").symlink_to(f"ckpt/{step}/model.pt")
        collect(tmp_path, "worker-0")
        assert (tmp_path / "newest.pt").readlink() == Path(f"ckpt/{step}/model.pt")
        assert (tmp_path / "ckpt" / "latest" / "model.pt").read_text() == step
        time.sleep(0.02)  # the clock of files is coarse
        (tmp_path / ATTEMPTS / str(start)).mkdir(parents=True)
    assert not (tmp_path / ROLES).exists()
    assert capsys.readouterr().err == ""


def test_what_is_fetched_in_part_is_not_taken_for_all(tmp_path: Path) -> None:
    kept = tmp_path / "worker-0"

    def fetch_in_part() -> None:
        with fetching(kept) as partial:
            partial.mkdir()
            (partial / "model.pt").write_text("torn")
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fetch_in_part()
    assert not kept.exists()
    assert (partial_of(kept) / "model.pt").read_text() == "torn"
    for name in ("first", "second"):  # as of a controller that was started twice
        with fetching(kept) as partial:
            partial.mkdir()
            (partial / name).write_text(name)
    assert sorted(path.name for path in kept.iterdir()) == ["first", "second"]
    assert not partial_of(kept).exists()


def test_clients_have_the_time_to_fetch(tmp_path: Path) -> None:
    spec = JobSpec(("true",), tmp_path, limits=Limits(grace_s=7))
    limits = with_client_limits(spec, FETCH_TIMEOUT_S).limits
    assert limits.grace_s > 7 + ENDING_S + FETCH_TIMEOUT_S
    assert limits.premature_s > FETCH_TIMEOUT_S


def test_mpirun_has_the_time_to_end_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the grace before SIGTERM, and again before SIGKILL."""
    monkeypatch.setattr(mpi, "_open_mpi", lambda _: ("mpirun", []))
    monkeypatch.setattr(mpi, "run_resolved", lambda job, *_: job)
    command = mpi._mpirun(2, None, 120.5)
    wait_s = int(command[command.index("odls_base_sigkill_timeout") + 1])
    assert wait_s > 120.5
    site = mpi.MpiSite(command, (), Address(LOOPBACK, 9000), None)
    spec = JobSpec(("true",), tmp_path, servers=0, limits=Limits(grace_s=120.5))
    job: Any = mpi.run_by_mpirun(site, spec)
    assert job.spec.limits.grace_s > 2 * wait_s


def test_files_that_roles_read_are_those_of_the_job_and_of_this_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BYTEPROPHET_PROFILE", "/home/me/profile.json")
    told = {"BYTEPROPHET_STRATEGY": "", "BYTEPROPHET_STRATEGY_MODEL": "/home/me/strategy.json"}
    spec = JobSpec(("true",), tmp_path, environment=told)
    assert needed_paths(spec) == ["/home/me/strategy.json", "/home/me/profile.json"]
    monkeypatch.setenv("BYTEPROPHET_PROFILE", "profile.json")  # from where workers start
    assert needed_paths(spec) == ["/home/me/strategy.json"]
