"""What is learned once per cell, and how jobs are started with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.bench.grid import Cell
from byteprophet.bench.grid_jobs import PreparedCell, Variant, prepare_cell
from byteprophet.bench.learned import Learned, learn
from byteprophet.control.messages import Plan
from byteprophet.errors import UserError
from byteprophet.profile import read_profile
from byteprophet.session.profiling import PROFILE
from byteprophet.workload import Tensor, Workload, to_toml

ORDER = "plan_bandwidth_bps"


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedCell:
    tensors = (
        Tensor("a", 2_000_000, 60_000_000, 120_000_000),
        Tensor("b", 40, 60_000_000, 120_000_000),
    )
    path = tmp_path / "two.toml"
    path.write_text(to_toml(Workload("two", 4, tensors)))
    return prepare_cell(Cell(str(path), "unlimited"), tmp_path / "workloads")


def learned(directory: Path, **settings: int) -> Learned:
    plan = Plan(
        number=1,
        at_iteration=9,
        settings=settings,
        ready=[],
        blocks=[],
        predicted_iteration_ns=1,
        reason="",
    )
    (directory / "plan.json").write_text(plan.model_dump_json(by_alias=True))
    return Learned(directory)


def test_only_who_plans_an_order_is_told_the_bandwidth(
    prepared: PreparedCell, tmp_path: Path
) -> None:
    found = learned(tmp_path, **{ORDER: 7, "window_max_bytes": 9, "in_order": 1})
    prophet = found.given_to(prepared.case(Variant("prophet")))
    assert prophet.settings == {ORDER: 7, "in_order": 1}
    assert prophet.environment == {PROFILE: str(tmp_path / "profile.json")}
    paper = found.given_to(prepared.case(Variant("prophet-paper")))
    assert (paper.settings, paper.environment) == ({}, prophet.environment)


def test_what_a_variant_sets_stays(prepared: PreparedCell, tmp_path: Path) -> None:
    variant = Variant("prophet", {ORDER: 3, "partition_bytes": 5})
    case = learned(tmp_path, **{ORDER: 7}).given_to(prepared.case(variant))
    assert case.settings == {ORDER: 3, "partition_bytes": 5}


def test_without_a_plan_there_is_the_profile(prepared: PreparedCell, tmp_path: Path) -> None:
    assert Learned(tmp_path).given_to(prepared.case(Variant("prophet"))).settings == {}
    assert learned(tmp_path).given_to(prepared.case(Variant("prophet"))).settings == {}


def test_a_broken_plan_is_named(prepared: PreparedCell, tmp_path: Path) -> None:
    found = learned(tmp_path, **{ORDER: 7})
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match=r"plan\.json: plan: Invalid JSON"):
        found.given_to(prepared.case(Variant("prophet")))


@pytest.mark.job
def test_a_cell_is_learned_once(prepared: PreparedCell, tmp_path: Path) -> None:
    first = learn(prepared, tmp_path / "learned", False)
    assert {tensor.name for tensor in read_profile(first.directory / "profile.json").tensors} == {
        "a",
        "b",
    }
    runs = list((tmp_path / "learned" / "runs").iterdir())
    # On a busy machine a short job may end before its controller has planned.
    kept, made = (
        [path.read_text() for path in folder.glob("plan.json")]
        for folder in (first.directory, *runs)
    )
    assert kept == made
    assert learn(prepared, tmp_path / "learned", False) == first
    assert list((tmp_path / "learned" / "runs").iterdir()) == runs
