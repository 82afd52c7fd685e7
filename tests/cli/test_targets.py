"""Where results may go: not over what is read, over each other, or where nothing can be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.cli.targets import check_chakra_targets, check_targets
from byteprophet.errors import NotWritten, UserError
from byteprophet.profile import Burst, Profile, TensorProfile

from ..diagnose.hand_made import ps_job, save_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory, as far as this goes."""
    directory = tmp_path / "run"
    (directory / "events").mkdir(parents=True)
    for name in ("config.toml", "summary.json", "order.json", "events/spans-worker-0.arrows"):
        (directory / name).write_text("of the job")
    return directory


@pytest.mark.parametrize(
    "name", ["order.json", "config.toml", "summary.json", "events/spans-worker-0.arrows"]
)
def test_a_run_keeps_its_files(name: str, run: Path) -> None:
    with pytest.raises(UserError, match=r"--out .*: is a file of the run"):
        check_targets({"--out": run / name}, [run])
    (run.parent / "link").symlink_to(run / name)
    with pytest.raises(UserError, match="is a file of the run"):
        check_targets({"--out": run.parent / "link"}, [run])


@pytest.mark.parametrize("name", ["report.html", "mine.html", "timeline.json.gz", "mine.json"])
def test_what_commands_write_into_a_run_may_be_written_again(name: str, run: Path) -> None:
    (run / name).write_text("of a command")
    check_targets({"--out": run / name}, [run])


def test_sources_and_results_differ(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text("{}")
    with pytest.raises(UserError, match="is one of the files to read"):
        check_targets({"--json": tmp_path / "." / "a.json"}, [source])
    with pytest.raises(UserError, match=r"--workload .*b: is also the file of --json"):
        check_targets({"--json": tmp_path / "b", "--workload": tmp_path / "c" / ".." / "b"})
    check_targets({"--json": Path("/dev/null"), "--workload": Path("/dev/null"), "--out": None})
    with pytest.raises(NotWritten, match="No such file"):
        check_targets({"--json": tmp_path / "none" / "b"})


@pytest.mark.parametrize(
    ("name", "command", "status"),
    [
        ("report.html", ["report"], 2),
        ("profile.png", ["profile"], 0),
        ("timeline.json.gz", ["timeline", "--format", "perfetto"], 2),
        ("timeline.0.et", ["timeline", "--format", "chakra"], 2),
    ],
)
def test_links_in_a_run_are_not_followed(
    name: str, command: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    save_run(run, ps_job())
    save_profile(run)
    victim.write_text("mine")
    (run / name).symlink_to(victim)
    assert run_cli([command[0], str(run), *command[1:]]) == status
    assert f"{run / name}: cannot be written: it is a link" in capsys.readouterr().err
    assert victim.read_text() == "mine"


def save_profile(run: Path) -> None:
    """A profile of a single tensor."""
    tensor = TensorProfile(
        name="w", size_bytes=8, forward_order=0, ready_ns=0, spread_ns=0, forward_ns=1, burst=0
    )
    Profile(
        scheduler="p3",
        workers=2,
        rank=0,
        iterations=5,
        batch_size=None,
        forward_ns=1,
        backward_ns=1,
        tensors=(tensor,),
        bursts=(Burst(ready_ns=0, spread_ns=0, tensors=1, size_bytes=8),),
    ).write(run / "profile.json")


def test_traces_of_ranks_do_not_replace_traces(tmp_path: Path) -> None:
    source = tmp_path / "ddp.3.et"
    with pytest.raises(UserError, match=r"ddp\.<rank>\.et: .*ddp\.3\.et is one of the files"):
        check_chakra_targets(tmp_path / "ddp", [source])
    check_chakra_targets(tmp_path / "other", [source])
    with pytest.raises(UserError, match=r"x\.1\.et is the file of --out"):
        check_chakra_targets(tmp_path / "x", [], {"--out": tmp_path / "x.1.et"})
    with pytest.raises(NotWritten, match="No such file"):
        check_chakra_targets(tmp_path / "none" / "x", [])
    check_chakra_targets(tmp_path / "d.p", [tmp_path / "dxp.3.et"])


def test_what_is_compared_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], run: Path
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("mine")
    for command in (
        ["bench", "--workload", str(mine), "--schedulers", "fifo", "--json"],
        ["bench", "--grid", str(mine), "--json"],
        ["bench", "--workload", "resnet50", "--strategies", f"fifo,{mine}", "--json"],
        ["strategy", "make", "partitioned-ps", str(run), "--resources", str(mine), "--out"],
    ):
        assert run_cli([*command, str(mine)]) == 2
        assert "mine.toml: is one of the files to read" in capfd.readouterr().err
    assert mine.read_text() == "mine"


def test_simulate_refuses_before_it_simulates(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "8", "--json"]
    (tmp_path / "out" / "simulation.html").mkdir(parents=True)
    assert run_cli([*command, str(tmp_path / "x"), "--out", str(tmp_path / "out")]) == 2
    assert "simulation.html: cannot be written: Is a directory" in capfd.readouterr().err
    model = tmp_path / "config.json"
    model.write_text(json.dumps({"model_type": "gpt2"}))
    assert run_cli(["simulate", str(model), *command[2:], str(model)]) == 2
    assert "config.json: is one of the files to read" in capfd.readouterr().err
