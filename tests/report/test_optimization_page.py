"""The page about an optimisation as text: what it must say is in its data, nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byteprophet.optimize.apply import BASELINE, OPTIMISED, Applied
from byteprophet.optimize.lanes import one_iteration
from byteprophet.optimize.moves import Effect, Pass
from byteprophet.optimize.outcome import Outcome
from byteprophet.optimize.plain import plain
from byteprophet.optimize.search import Candidate, Decision
from byteprophet.optimize.trials import Trial
from byteprophet.optimize.would_add import Addition
from byteprophet.report.page import write_optimization

from ..optimize.outcomes import no_better, with_servers, without_servers
from .test_page import EVIL, Page, slices

Found = tuple[Outcome, tuple[Pass, ...]]
ADDITIONS = [
    Addition("bf16", Effect.LOSSY, None, why_not="what its regions cost was not measured"),
    Addition("compile", Effect.ROUNDING, 1.5, (Decision("compile", "compile 0+1", 9_000_000),)),
]


def write(path: Path, found: Found, name: str = "run", applied: Applied | None = None) -> Path:
    """The page of an outcome, with all that a page can have if ``applied`` is given."""
    outcome, passes = found
    trials = [Trial(Candidate(outcome.job, outcome.predicted_ns), (0.5,))] if applied else []
    data = plain(name, outcome, passes, ADDITIONS, trials, applied)
    before, after = (one_iteration(one, outcome.typical) for one in (outcome.before, outcome.after))
    write_optimization(path, data, before, after)
    return path


def applied_rounds(outcome: Outcome, factor: float) -> Applied:
    """Two rounds, in which the optimised job takes ``factor`` of what was predicted."""
    was, is_ = outcome.baseline_ns, round(factor * outcome.predicted_ns)
    return Applied({
        BASELINE: [np.array([was, was]), np.array([was])],
        OPTIMISED: [np.array([is_, is_]), np.array([is_])],
    })  # fmt: skip


def data_of(path: Path) -> Any:
    return Page(path.read_text(encoding="utf-8")).data


def test_what_the_page_must_say(tmp_path: Path) -> None:
    outcome, passes = found = without_servers()
    data = data_of(write(tmp_path / "page.html", found, "run", applied_rounds(outcome, 1.0)))
    assert data["gains"]
    for name in ("baseline_ns", "predicted_ns", "bound_ns", "replay_error", "replays"):
        assert data[name] == getattr(outcome, name)
    assert (data["low_ns"], data["high_ns"]) == outcome.interval_ns
    assert data["path"] == {"before": outcome.path_before, "after": outcome.path_after}
    assert next(iter(data["path"]["after"])) == max(outcome.path_after, key=outcome.path_after.get)  # type: ignore[arg-type]
    whys = {each.name: each.why for each in passes}  # type: ignore[attr-defined]
    assert [(d["pass"], d["what"], d["gain_ns"], d["why"]) for d in data["decisions"]] == [
        (each.by, each.what, each.gain_ns, whys[each.by]) for each in outcome.decisions
    ]
    for side, job in (("before", outcome.recorded), ("after", outcome.job)):
        buckets = data[side]["buckets"]
        order = [job.strategy.buckets[bucket["number"]].reduce_place for bucket in buckets]
        assert order == sorted(order)
        assert sum(bucket["size_bytes"] for bucket in buckets) == job.model.size_bytes
    assert len(data["before"]["buckets"]) == 1
    assert [(each["pass"], each["ratio"]) for each in data["would_add"]] == [
        ("bf16", None),
        ("compile", 1.5),
    ]
    assert data["would_add"][0]["why_not"] == "what its regions cost was not measured"
    assert data["would_add"][1]["allowed_by"] == "--allow compile"
    assert data["would_add"][1]["decisions"][0]["what"] == "compile 0+1"
    assert sum(each["moves"] for each in data["reasons"]) >= len(data["decisions"])
    total = sum(each["gain_ns"] for each in data["reasons"])
    assert total == sum(each["gain_ns"] for each in data["decisions"])
    assert data["trials"] == [{"what": outcome.job.title, "ratio": 0.5, "chosen": True}]
    assert [row["baseline_ns"] for row in data["measured"]["rounds"]] == [outcome.baseline_ns] * 2


@pytest.mark.parametrize(("factor", "held"), [(1.0, True), (0.8, False), (1.2, False)])
def test_whether_the_interval_held(tmp_path: Path, factor: float, held: bool) -> None:
    outcome, _ = found = without_servers()
    page = write(tmp_path / "page.html", found, "run", applied_rounds(outcome, factor))
    assert data_of(page)["measured"]["held"] == held


@pytest.mark.parametrize("make", [without_servers, with_servers, no_better])
def test_both_iterations_are_on_one_axis(tmp_path: Path, make: Callable[[], Found]) -> None:
    outcome, _ = found = make()
    shown = data_of(write(tmp_path / "page.html", found))["timeline"]
    unit_ns = shown["unit_ns"]
    for role, one in (("before", outcome.before), ("after", outcome.after)):
        played, typical = one.replayed, outcome.typical
        begins_ns = played.start_ns[one.begin[:, typical]]
        slowest_ns = int((played.end_ns[one.end[:, typical]] - begins_ns).max())
        assert shown["ends"][role] == slowest_ns // unit_ns
        lanes = [slices(lane) for lane in shown["lanes"] if lane["role"] == role]
        assert lanes
        for rows in lanes:
            assert (rows[:, 0] >= 0).all()
            assert (rows[:-1, 0] + rows[:-1, 1] <= rows[1:, 0]).all()
            assert rows[-1, 0] + rows[-1, 1] <= shown["ends"][role]
    assert shown["length"] == max(shown["ends"].values())


def test_a_job_with_servers_has_policies(tmp_path: Path) -> None:
    outcome, _ = found = with_servers()
    data = data_of(write(tmp_path / "page.html", found))
    assert data["before"]["policy"]["name"] == "fifo"
    assert outcome.job.policy is not None
    assert data["after"]["policy"]["settings"] == outcome.job.policy.settings
    assert not data["before"]["buckets"]
    assert {"push", "pull"} <= set(data["timeline"]["kinds"])


def test_nothing_is_fetched_and_names_stay_in_the_data(tmp_path: Path) -> None:
    text = write(tmp_path / "page.html", no_better(), EVIL).read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 4
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not attributes.keys() & {"src", "href", "srcset", "action"}
    assert set(re.findall(r"[a-z]+://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not page.data["gains"]
    assert page.data["run"].startswith(EVIL)
