from __future__ import annotations

import pytest

from byteprophet import engine, schedulers
from byteprophet.errors import UserError
from byteprophet.job import Costs
from byteprophet.workload import Tensor, Workload

MS = 1_000_000
WORKLOAD = Workload(
    "two",
    8,
    (Tensor("urgent", 400_000, 20 * MS, 10 * MS), Tensor("bulk", 8_000_000, 20 * MS, 40 * MS)),
)


@pytest.mark.parametrize("scheduler", schedulers.names)
def test_candidates_are_settings_of_the_scheduler(scheduler: str) -> None:
    for settings in engine.tuning_grid(scheduler):
        schedulers.resolve(scheduler, settings)


def test_ranked_by_what_each_takes() -> None:
    ranked = engine.rank_settings(WORKLOAD, "p3", 2, 1, 10**9)
    assert sorted(map(str, (settings for settings, _ in ranked))) == sorted(
        map(str, engine.tuning_grid("p3"))
    )
    times_ns = [iteration_ns for _, iteration_ns in ranked]
    assert times_ns == sorted(times_ns)
    assert times_ns[0] < times_ns[-1]
    settings, iteration_ns = ranked[len(ranked) // 2]
    job = engine.paced_job(WORKLOAD, "p3", settings, bandwidth_bps=10**9)
    assert engine.simulate(job).median_ns == iteration_ns


def test_delays_want_windows_and_costs_want_large_partitions() -> None:
    grid = [
        {"partition_bytes": size, "outstanding_messages": messages}
        for size in (65536, 1048576)
        for messages in (1, 8)
    ]

    def best(costs: Costs) -> dict[str, int]:
        return engine.rank_settings(WORKLOAD, "p3", 2, 1, 10**9, grid, costs=costs)[0][0]

    cheap = best(Costs(delay_ns=0, message_cost_ns=0))
    far = best(Costs(delay_ns=2 * MS, message_cost_ns=0))
    dear = best(Costs(delay_ns=0, message_cost_ns=MS))
    assert cheap == {"partition_bytes": 65536, "outstanding_messages": 1}
    assert far["outstanding_messages"] == 8
    assert dear["partition_bytes"] == 1048576


def test_bad_candidates_are_refused() -> None:
    with pytest.raises(UserError, match="credit_bytes"):
        engine.rank_settings(WORKLOAD, "p3", 2, 1, None, [{"credit_bytes": 1}])
