"""Damaged inputs of every format, a few of those of ``experiments/damaged_inputs.py``.

Formats whose files only a job of several seconds leaves are tried by the script alone; the runs
that it damages are read in ``tests/cli/test_broken_runs.py``, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from damage.apart import outcomes
from damage.attempt import FAULTS, REFUSED, RESULT, attempt, judge
from damage.formats import FORMATS, Format
from damage.samples import make_samples

from ..thorough import examples

QUICK = ("workloads", "keys", "learned", "messages", "values")
NEVER_REFUSED = ("rounds.json",)
"""What is wrong in these is measured again."""
MUTATIONS = examples(20, 200)
OF_A_RUN = 25
SEED = 20261125


def named(name: str) -> Format:
    return next(one for one in FORMATS if one.name == name)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_samples(tmp_path_factory.mktemp("samples"), QUICK)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_samples(tmp_path_factory.mktemp("samples"), ["prophet"])


@pytest.mark.parametrize("name", [one.name for one in FORMATS if one.part in QUICK])
def test_a_result_or_one_line(name: str, samples: Path) -> None:
    found = [attempt(samples, named(name), SEED, n, quick=True) for n in range(MUTATIONS)]
    faults = [(n, one) for n, one in enumerate(found) if one.what in FAULTS]
    assert not faults
    expected = {RESULT} if name in NEVER_REFUSED else {RESULT, REFUSED}
    assert {one.what for one in found} == expected


@pytest.mark.job
@pytest.mark.parametrize("name", [one.name for one in FORMATS if one.part == "prophet"])
def test_files_of_a_run(name: str, run: Path) -> None:
    found = [attempt(run, named(name), SEED, n, quick=True) for n in range(OF_A_RUN)]
    assert not [(n, one) for n, one in enumerate(found) if one.what in FAULTS]
    assert RESULT in {one.what for one in found}


def test_the_same_seed_damages_alike_and_leaves_all_as_it_was(samples: Path) -> None:
    workload, path = named("workload"), samples / "small.toml"
    before = path.read_bytes()
    texts = [attempt(samples, workload, SEED, n).text for n in range(20)]
    assert [attempt(samples, workload, SEED, n).text for n in range(20)] == texts
    assert path.read_bytes() == before


def raises(_samples: Path, _path: Path) -> None:
    raise KeyError("x")


def hangs(_samples: Path, _path: Path) -> None:
    while True:
        pass


def test_what_is_wrong_is_told(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that finds nothing has to be able to."""
    monkeypatch.setattr("damage.attempt.LIMIT_S", 0.1)
    path = samples / "small.toml"
    assert judge(raises, samples, path).what == "traceback"
    assert judge(hangs, samples, path).what == "hang"


@pytest.mark.job
def test_inputs_are_tried_in_a_process_of_their_own(samples: Path) -> None:
    found = list(outcomes(samples, "workload", SEED, range(5)))
    assert [number for number, _ in found] == list(range(5))
    assert {one.what for _, one in found} <= {RESULT, REFUSED}
