"""Steps of the links of a job of plain commands."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import check_job, run_job
from byteprophet.launcher.stepper import FILE, read_steps
from byteprophet.network import Step

from ..namespaces import why_not_permitted
from .conftest import MakeSpec

_REASON = why_not_permitted()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

# Shows the link's rate until it is another than at first. Worker 0 announces update 3 once all
# have shown their first.
_WATCH = """
mkdir -p $BYTEPROPHET_RUN/steps
show() { tc qdisc show dev eth0 | grep -o 'rate [^ ]*'; }
first=$(show)
echo $first
touch $BYTEPROPHET_RUN/shown-$DMLC_WORKER_ID
until [ -e $BYTEPROPHET_RUN/shown-1 ] && [ -e $BYTEPROPHET_RUN/shown-2 ]; do sleep 0.05; done
[ "$DMLC_WORKER_ID" = 0 ] && touch $BYTEPROPHET_RUN/steps/update-3
for i in $(seq 400); do
  now=$(show)
  [ "$now" != "$first" ] && break
  [ "$DMLC_WORKER_ID" = 2 ] && [ "$i" = 10 ] && break
  sleep 0.05
done
echo $now
"""


def test_links_step_at_an_update_and_after_a_time(make_spec: MakeSpec) -> None:
    spec = make_spec(
        ("sh", "-c", _WATCH),
        workers=3,
        bandwidth_bps=500_000_000,
        worker_bandwidth_bps={2: 50_000_000},
        steps=(Step(200_000_000, at_update=3), Step(300_000_000, at_s=3600.0)),
        namespaces=True,
    )
    said: dict[str, list[str]] = {}

    def echo(role: str, line: str) -> None:
        said.setdefault(role, []).extend(re.findall(r"rate (\w+)", line))

    before_ns = time.monotonic_ns()
    result = run_job(spec, echo)
    assert result.failed is None
    assert said["worker-0"] == said["worker-1"] == ["500Mbit", "200Mbit"]
    assert said["worker-2"] == ["50Mbit", "50Mbit"]  # it has a rate of its own, and waits in vain
    made, not_made = read_steps(spec.run_directory)
    assert (made["rate_bps"], made["at_update"], made["at_s"]) == (200_000_000, 3, None)
    assert before_ns < made["began_ns"] < made["done_ns"] < time.monotonic_ns()
    assert (not_made["began_ns"], not_made["done_ns"]) == (None, None)


def test_steps_need_hosts_of_their_own(make_spec: MakeSpec) -> None:
    with pytest.raises(UserError, match="needs namespaces"):
        check_job(make_spec(steps=(Step(10**9, at_s=1.0),)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not a file of steps"),
        ("[]", "is not a file of steps"),
        ('{"steps": []}', "is not a file of steps"),
        ('{"schema": 1, "steps": [{"rate_bps": 5}]}', "is not a file of steps"),
        ('{"schema": 2, "steps": []}', "schema must be 1, got 2"),
    ],
)
def test_a_broken_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UserError, match=f"{tmp_path / FILE}: {says}"):
        read_steps(tmp_path)


def test_a_job_without_steps_has_no_file(make_spec: MakeSpec) -> None:
    spec = make_spec()
    run_job(spec).check()
    assert not (spec.run_directory / FILE).exists()
    assert read_steps(spec.run_directory) == []
