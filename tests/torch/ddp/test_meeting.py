"""A rank that is alone in a forward pass neither waits for ever nor decides alone."""

from __future__ import annotations

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import FileStore, HashStore, Store

from byteprophet.launcher import JobSpec, run_job
from byteprophet.torch.ddp.meeting import meet
from byteprophet.torch.ddp.models import Model
from byteprophet.torch.ddp.trial import Trial

SCRIPT = Path(__file__).with_name("alone_script.py")


@pytest.fixture(params=["hash", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return HashStore() if request.param == "hash" else FileStore(str(tmp_path / "store"), 3)


def test_all_go_on_when_the_last_one_has_come(store: Store) -> None:
    def come(rank: int) -> str:
        time.sleep(0.05 * rank)
        return meet(store, "1", rank, 3, "dear", "come", patience_s=60.0)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(come, range(3))) == ["", "", ""]


def test_who_comes_late_gets_the_same_verdict(store: Store) -> None:
    early = meet(store, "1", 0, 3, "dear", "come", patience_s=0.1)
    assert early == "ranks 1 and 2 have not come"
    assert meet(store, "1", 1, 3, "dear", "come", patience_s=60.0) == early
    assert meet(store, "1", 2, 3, "dear", "come", patience_s=60.0) == early


def test_what_ranks_say_must_be_the_same(store: Store) -> None:
    def come(rank: int) -> str:
        return meet(store, "1", rank, 2, ("dear", "allreduce")[rank], "come", patience_s=60.0)

    with ThreadPoolExecutor(2) as threads:
        reasons = set(threads.map(come, range(2)))
    assert reasons == {"ranks differ: rank 0 has dear, rank 1 has allreduce"}


def test_a_forward_pass_without_an_exchange_is_no_iteration() -> None:
    trial, model = Trial(), object.__new__(Model)
    counted = 0
    for exchange in range(16):
        assert trial.begin_iteration(model, exchange) is None
        assert trial.begin_iteration(model, exchange) is None  # this rank alone evaluates
        counted += 1
    assert trial.begin_iteration(model, counted) is not None


@pytest.mark.job(3)
@pytest.mark.timeout(300)
def test_ranks_that_are_not_together_train_as_without_us(tmp_path: Path) -> None:
    """One rank evaluates before it trains, with gradients; or one rank alone has the variable."""

    def train(way: str, sync: str) -> tuple[list[str], str]:
        lines: list[str] = []
        spec = JobSpec(
            command=(sys.executable, str(SCRIPT), way),
            run_directory=tmp_path / f"{way}{sync}",
            servers=0,
            environment={"BYTEPROPHET_SYNC": sync, "BYTEPROPHET_TIMEOUT_S": "3"},
            timeout_s=200.0,
        )
        run_job(spec, lambda _role, line: lines.append(line)).check()
        said = [line for line in lines if "exchanges its gradients itself" in line]
        assert len(said) == bool(sync)
        return re.findall(r"digest (\w+)", "\n".join(lines)), "\n".join(said)

    plain, _ = train("evaluates", "")
    assert plain[0] == plain[1]
    for way in ("evaluates", "unset"):
        digests, said = train(way, "dear-planned")
        assert digests == plain
        assert "rank 1 has not begun this forward pass within 3 s" in said


@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("hooks", "parameter '0.weight' has a hook that runs after its gradient is computed"),
        ("optimizes", "two optimizers hold the same parameter"),
    ],
)
def test_one_rank_alone_does_not_give_the_exchange_back(tmp_path: Path, way: str, why: str) -> None:
    lines: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(SCRIPT), way),
        run_directory=tmp_path / "run",
        servers=0,
        environment={"BYTEPROPHET_SYNC": "dear-planned", "BYTEPROPHET_TIMEOUT_S": "6"},
        timeout_s=100.0,
    )
    assert run_job(spec, lambda role, line: lines.append(f"{role}: {line}")).failed is not None
    said = [line for line in lines if "exchange the gradients itself from here on" in line]
    assert len(said) == 1
    assert said[0].startswith("worker-0: ")
    assert f"because {why}; but rank 1 has not found a reason like that" in said[0]
