from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.network import Cluster, HostSpec, Step, parse_step
from byteprophet.network.permission import enter_command
from byteprophet.network.steps import VARIABLE, announce, announced

from ..namespaces import why_not_permitted

_REASON = why_not_permitted()


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("3gbit@20s", Step(3_000_000_000, at_s=20.0)),
        ("1.5mbit@0.25s", Step(1_500_000, at_s=0.25)),
        (" 500mbit@8i", Step(500_000_000, at_update=8)),
    ],
)
def test_a_step_is_a_rate_and_a_time_or_an_update(text: str, step: Step) -> None:
    assert parse_step(text) == step
    assert parse_step(str(step)) == step


@pytest.mark.parametrize(
    "text",
    [
        "3gbit",
        "3gbit@",
        "@3s",
        "3gbit@20",
        "3gbit@-1s",
        "3gbit@1.5i",
        "fast@3s",
        "1gbit@s",
        "1gbit@" + "9" * 5000 + "i",
        "1gbit@" + "9" * 400 + "s",
    ],
)
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--step"):
        parse_step(text)


def test_a_step_needs_a_rate() -> None:
    with pytest.raises(UserError, match="needs a rate"):
        parse_step("unlimited@3s")


def test_only_awaited_updates_are_announced(tmp_path: Path) -> None:
    environment = {VARIABLE: "3,12", "BYTEPROPHET_RUN": str(tmp_path)}
    for update in range(14):
        announce(update, environment)
    assert [update for update in range(14) if announced(update, tmp_path)] == [3, 12]
    announce(1, {})


@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_both_ends_of_the_chosen_links_change() -> None:
    with Cluster([HostSpec("a", 10**9), HostSpec("b", 10**9), HostSpec("c")]) as cluster:
        cluster.set_rate(["b", "c"], 300_000_000)
        shown = ["tc", "qdisc", "show", "dev"]
        rates = [_rate(host.enter([*shown, "eth0"])) for host in cluster.hosts]
        inside = [*enter_command(cluster._switch_pid), "--net", "--", *shown]
        ports = [_rate([*inside, f"port{index}"]) for index in range(3)]
    assert rates == ports == ["1Gbit", "300Mbit", "300Mbit"]


def _rate(command: list[str]) -> str:
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    found = re.search(r"rate (\w+)", shown)
    assert found is not None, shown
    return found[1]
