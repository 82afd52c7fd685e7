"""``auto``: both exchanges are timed, the faster one is kept, and the bits stay the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.launcher import JobSpec, run_job
from byteprophet.torch.ddp.trial import Trial, took_ns

SCRIPT = Path(__file__).with_name("trial_script.py")


def digest_and_lines(folder: Path, sync: str) -> tuple[set[str], list[str]]:
    """What the ranks ended with, and what rank 0 said of the exchange."""
    lines: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(SCRIPT)),
        run_directory=folder / f"run{sync}",
        servers=0,
        environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "120"},
        timeout_s=250.0,
    )
    run_job(spec, lambda _role, line: lines.append(line)).check()
    digests = {match[1] for line in lines if (match := re.match(r"digest (\w+)", line))}
    return digests, [line for line in lines if "an iteration takes" in line]


@pytest.mark.job
@pytest.mark.timeout(500)
def test_a_trial_changes_no_bit_and_says_what_it_found(tmp_path: Path) -> None:
    plain, said = digest_and_lines(tmp_path, "")
    assert len(plain) == 1
    assert not said
    chosen, said = digest_and_lines(tmp_path, "auto")
    assert chosen == plain
    assert said
    by_ours = [line for line in said if "dear-planned exchanges gradients" in line]
    by_itself = [line for line in said if "exchanges its gradients itself" in line]
    assert (len(by_ours), len(by_itself)) in ((1, 0), (0, 2))


def test_the_first_iterations_do_not_count() -> None:
    slow, fast = 50, 10
    began_ns = [0]
    for number in range(16):
        began_ns.append(began_ns[-1] + (slow if number < 4 else fast))
    assert took_ns(began_ns[:-1], uncounted=4) is None
    assert took_ns(began_ns, uncounted=4) == fast


@pytest.mark.parametrize(("ours_ns", "is_ours"), [(2e6, True), (4e6, False), (3e6, False)])
def test_ours_must_be_faster(ours_ns: float, is_ours: bool) -> None:
    trial = Trial()
    trial.try_ours(3e6)
    assert trial.times_ns(ours_ns) == (3e6, ours_ns)
    trial.decide(3e6, ours_ns)
    assert (trial.is_over, trial.is_ours) == (True, is_ours)
    first = "2.0 ms" if is_ours else "3.0 ms"
    assert trial.outcome.startswith(f"an iteration takes {first} this way and ")


def test_ours_is_kept_if_a_model_needs_it() -> None:
    trial = Trial()
    trial.try_ours(3e6)
    trial.decide(3e6, 4e6, must_stay=True)
    assert trial.is_ours
    assert trial.outcome.endswith("3.0 ms without byteprophet, but a model has yet to run backward")


def test_a_trial_cannot_be_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["run", "--servers", "0", "--sync", "auto", "--record", "--", "true"]) == 2
    assert "not with --sync auto" in capfd.readouterr().err
